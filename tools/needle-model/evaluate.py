"""Recall and ablation tables of an exported checkpoint, with the reference arithmetic.

A value counts as recalled when every one of its tokens is the arg-max given the true tokens before it, which is the same
as greedy decoding reproducing the value after the answer's fixed opening ("The secret code for X is ").
"""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F

from ckpt import load_master, load_native
from model import Mode
from quantizers import nvfp4
from task import Task, add_data_arguments

EXACT = dict(hp=True, act8=True, kv8=True, idx="fp4", topk=64)


@torch.no_grad()
def cell(M, mode, T, S, depth, n, seed, tok_budget=65536, **kw):
    """(share recalled, share of samples whose value entry was selected by each indexer layer)."""
    rng = np.random.default_rng([seed, S, int(depth * 100)])
    ss = [T.eval_sample(S, depth, rng, **kw) for _ in range(n)]
    ok, hit = 0, {}
    L = max(len(s[0]) for s in ss)
    for i in range(0, n, max(1, tok_budget // L)):
        b = ss[i : i + max(1, tok_budget // L)]
        ids = np.full((len(b), L), 1, np.int64)
        for r, s in enumerate(b):
            ids[r, : len(s[0])] = s[0]
        ids = torch.from_numpy(ids).to(M.dev)
        mode.chunk = 2048 if L > 4096 else 0
        h = M.forward(ids, mode, probe=True)
        for r, (_, pos, src) in enumerate(b):
            lg = M.logits(h[r, torch.from_numpy(pos - 1).to(M.dev)])
            ok += int((lg.argmax(-1) == ids[r, torch.from_numpy(pos).to(M.dev)]).all())
            for layer, parts in M.probe_out.items():
                for sl, keep in parts:
                    q = int(pos[0]) - 1
                    if sl.start <= q < sl.stop:
                        e = int(src[0]) // 4
                        hit.setdefault(layer, []).append(bool(keep[r, q - sl.start, e : e + 2].any()))
    return ok / n, {str(k): round(float(np.mean(v)), 3) for k, v in hit.items()}


@torch.no_grad()
def lm_loss(M, mode, T, S=2048, n=16):
    out = {}
    for name, book in zip(("kjv", "austen", "promessi"), T.books):
        x = book[0]
        k = min(n, len(x) // S)
        ids = np.stack([np.concatenate(([0], x[j * S : (j + 1) * S - 1])) for j in range(k)])
        ids = torch.from_numpy(ids.astype(np.int64)).to(M.dev)
        mode.chunk = 0
        tot = 0.0
        for a in ids.split(4):
            lg = M.logits(M.forward(a, mode)[:, :-1])
            tot += F.cross_entropy(lg.float().flatten(0, 1), a[:, 1:].flatten(), reduction="sum").item()
        out[name] = round(tot / (ids.shape[0] * (S - 1)), 4)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--ckpt", required=True, help="folder of the exported checkpoint, weights unpacked")
    ap.add_argument("--master", help="master weights, for the ablation with BF16 experts")
    ap.add_argument("--out", required=True, help="the JSON file to write")
    ap.add_argument("--n", type=int, default=20, help="samples of each length and depth")
    ap.add_argument("--lengths", default="256,512,1024,2048,4096,8192,16384,32768")
    ap.add_argument("--ablate", default="4096:12,16384:5", help="LENGTH:SAMPLES of the ablations; 0:0 for none")
    ap.add_argument("--limit", type=float, default=1e9, help="seconds after which nothing new is begun")
    ap.add_argument("--skip-text", action="store_true", help="leave out the text loss, the slowest part on a CPU")
    add_data_arguments(ap)
    A = ap.parse_args()
    t0 = time.time()
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    cd = torch.bfloat16 if dev == "cuda" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = True  # exact here: see quantizers.exact_fp32
    M, T = load_native(A.ckpt, dev, cd), Task(A.corpus, A.tokenizer, "held")
    for k, p in M.p.items():
        p.requires_grad_(False)
    R = {"exact": EXACT, "n": A.n, "recall": {}, "ablation": {}}

    def save():
        with open(A.out, "w", encoding="utf-8") as stream:
            json.dump(R, stream, indent=1)

    depths = (0, 0.25, 0.5, 0.75, 1.0)
    if not A.skip_text:
        R["lm_loss"] = lm_loss(M, Mode(**EXACT), T)
        print("text loss", R["lm_loss"], flush=True)
    sets = {
        "sparse": dict(every=0),
        "dense": dict(every=128),
        "packed": dict(every=32),
        "unseen_key": dict(every=0, unseen=True),
    }
    R["sets"] = {
        "sparse": "1 asked needle + 2 others",
        "dense": "one distractor needle per 128 tokens",
        "packed": "one per 32 tokens (at most 660)",
        "unseen_key": "as sparse, the key was never a key in training",
    }

    def recall(name, lengths, n):
        R["recall"].setdefault(name, {})
        for S in lengths:
            if time.time() - t0 > A.limit:
                break
            row, hits = [], []
            for d in depths:
                a, h = cell(M, Mode(**EXACT), T, S, d, n, 1, **sets[name])
                row.append(round(a, 3))
                hits.append(h)
            R["recall"][name][S] = {
                "by_depth": row,
                "mean": round(float(np.mean(row)), 3),
                "n_per_cell": n,
                "value_entry_selected": hits,
            }
            print(
                f"{name:10s} {S:6d} "
                + " ".join(f"{x:5.2f}" for x in row)
                + f"  mean {np.mean(row):.3f}  sel {hits[2]}  {time.time()-t0:.0f}s",
                flush=True,
            )
            save()

    lens = list(map(int, A.lengths.split(",")))
    recall("sparse", lens, A.n)
    recall("dense", lens, A.n)
    experts = {k: p.data.clone() for k, p in M.p.items() if M.kind[k] == "fp4"}
    master = load_master(A.master, dev, cd) if A.master else None

    def put(kind):
        for k, v in experts.items():
            if kind == "native":
                w = v
            elif kind == "nvfp4":
                w = torch.stack([nvfp4(e) for e in v])
            else:
                w = master.p[k].data
            M.p[k].data.copy_(w)

    abl = (
        [("exact", {}, "native")]
        + [(f"topk{k}", dict(topk=k), "native") for k in (1, 2, 4, 8, 16, 32, 128, 256)]
        + [("topk_all", dict(topk=None), "native")]
    )
    abl += [("index_" + x, dict(idx=x), "native") for x in ("fp8", "bf16")] + [
        (f"topk{k}_index_{x}", dict(topk=k, idx=x), "native") for k in (1, 4) for x in ("fp8", "bf16")
    ]
    abl += [
        ("kv_bf16", dict(kv8=False), "native"),
        ("experts_nvfp4_weights", {}, "nvfp4"),
        ("experts_nvfp4_w4a4", dict(expert_act="nvfp4"), "nvfp4"),
    ]
    if master is not None:
        abl += [("experts_bf16_master", dict(expert_act="bf16"), "master")]
    abl += [("no_128to1_entries", dict(no128=True), "native"), ("no_4to1_entries", dict(no4=True), "native")]
    for S, n in [tuple(map(int, x.split(":"))) for x in A.ablate.split(",") if not x.startswith("0")]:
        for kname in ("dense", "packed"):
            for label, ch, ex in abl:
                if time.time() - t0 > A.limit:
                    break
                put(ex)
                acc = [
                    cell(M, Mode(**{**EXACT, **ch}), T, S, d, n, 2, **sets[kname])
                    for d in (0.1, 0.35, 0.6, 0.85)
                ]
                sel = float(np.mean([h.get("1", np.nan) for _, h in acc]))
                R["ablation"].setdefault(kname, {}).setdefault(S, {})[label] = {
                    "recall": round(float(np.mean([a for a, _ in acc])), 3),
                    "value_entry_selected_layer1": round(sel, 3) if sel == sel else None,
                    "samples": 4 * n,
                }
            put("native")
            r = R["ablation"].get(kname, {}).get(S, {})
            print(
                kname,
                S,
                " ".join(f"{k}={v['recall']}/{v['value_entry_selected_layer1']}" for k, v in r.items()),
                f"{time.time()-t0:.0f}s",
                flush=True,
            )
            save()
    recall("unseen_key", [x for x in lens if x in (512, 2048, 8192)], A.n)
    for label, ch, ex in abl:
        if A.skip_text or time.time() - t0 > A.limit:
            break
        if label in (
            "exact",
            "kv_bf16",
            "index_bf16",
            "experts_nvfp4_weights",
            "experts_nvfp4_w4a4",
            "experts_bf16_master",
            "topk16",
            "topk_all",
        ):
            put(ex)
            R.setdefault("lm_loss_ablation", {})[label] = lm_loss(M, Mode(**{**EXACT, **ch}), T)
    save()
    print("evaluated in", time.time() - t0, flush=True)


if __name__ == "__main__":
    main()
