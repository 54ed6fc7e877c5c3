"""How well the layer-1 indexer ranks the entry that holds the asked value, where the answer's first digit group is predicted.

  rank.py CHECKPOINT OUT.json SECONDS
Runs only what that needs (layer 0 and the layer-1 indexer), so it is cheap on a CPU.  For every sample and variant it records the
rank (0 = best) of the best entry covering the value among all visible 4:1 entries: P(rank < k) is the chance that top-k selection
keeps it.  Variants: the index number format; the indexer with only its strongest heads; Gaussian noise of a given relative size on
the indexer's weights (a stand-in for an indexer that was trained less well).
"""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F

from ckpt import load_native
from evaluate import EXACT
from model import Mode, hadamard, rms_hp
from quantizers import q4_act, q8_act, w8
from task import Task, add_data_arguments

LAYER = "layers.1.attn."
# Name, index format, heads, noise, seed.
VARIANTS = [(f, f, 8, 0, 0) for f in ("fp4", "fp8", "bf16")]
VARIANTS += [(f"fp4_heads{h}", "fp4", h, 0, 0) for h in (1, 2, 4)]
VARIANTS += [
    (f"{f}_noise{r}_seed{d}", f, 8, r, d)
    for r in (0.6, 0.8, 1.0, 1.3)
    for d in range(1, 5)
    for f in ("fp4", "bf16")
]


@torch.no_grad()
def ranks(M, T, clean, S, depth, rng, every):
    """Variant -> rank of the value's entry, for one sample."""
    ids, pos, src = T.eval_sample(S, depth, rng, every)
    x = torch.from_numpy(ids[None].astype(np.int64))
    M.m = Mode(**{**EXACT, "act8": False})
    M.m.chunk = 2048
    M.S = len(ids)
    M.probe = None
    M.kl_w = None
    h = F.embedding(x, M.p["embed.weight"]).unsqueeze(2).repeat(1, 1, 4, 1)
    for n in ("attn", "ffn"):
        a, post, comb = M.hc_mix(h, "layers.0.hc_" + n)
        y = rms_hp(M.hc_in(h, a), M.p[f"layers.0.{n}_norm.weight"], 1e-6)
        h = M.hc_out(M.attn(0, y) if n == "attn" else M.moe(0, y, x), h, post, comb)
    a, _, _ = M.hc_mix(h, "layers.1.hc_attn")
    y = rms_hp(M.hc_in(h, a), M.p["layers.1.attn_norm.weight"], 1e-6)
    q = int(pos[0]) - 1
    e = int(src[0]) // 4
    vis = (q + 1) // 4
    qr = torch.zeros(1, M.S, 128)
    qr[:, q : q + 1] = rms_hp(M.lin(y[:, q : q + 1], LAYER + "wq_a.weight"), M.p[LAYER + "q_norm.weight"], 1e-6)
    out = {}
    strength = M.p[LAYER + "indexer.weights_proj.weight"].detach().norm(dim=1)
    for name, fmt, heads, noise, seed in VARIANTS:
        g = torch.Generator().manual_seed(seed)
        for k in clean:
            w = clean[k].clone()
            if noise:
                w += torch.randn(w.shape, generator=g) * w.std() * noise
                w = w8(w) if "wq_b" in k else w.bfloat16().float()
            M.p[k].data.copy_(w)
        if heads < 8:
            M.p[LAYER + "indexer.weights_proj.weight"].data[strength.argsort()[: 8 - heads]] = 0
        M.m.idx = fmt
        ik = M.compress(LAYER + "indexer.compressor.", y, 128, 4)
        if fmt != "bf16":
            ik = q4_act(hadamard(ik), 32) if fmt == "fp4" else q8_act(hadamard(ik), 128)
        M.ik = ik
        s = M.index_scores(LAYER, y, qr, slice(q, q + 1))[0, 0, :vis]
        best = s[e : e + 2].max()
        out[name] = int((s > best).sum())
    for k in clean:
        M.p[k].data.copy_(clean[k])
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint")
    ap.add_argument("out")
    ap.add_argument("seconds", type=float)
    add_data_arguments(ap)
    A = ap.parse_args()
    torch.set_num_threads(1)
    M, T = load_native(A.checkpoint), Task(A.corpus, A.tokenizer, "held")
    indexer = [k for k in M.p if k.startswith(LAYER + "indexer.") and M.p[k].ndim == 2 and "ape" not in k]
    clean = {k: M.p[k].detach().clone() for k in indexer}
    found, start, rng = {}, time.time(), np.random.default_rng(11)
    while time.time() - start < A.seconds:
        for S in (1024, 2048, 4096):
            for name, every in (("sparse", 0), ("dense", 128)):
                for _ in range(2):
                    for k, v in ranks(M, T, clean, S, float(rng.random() * 0.9), rng, every).items():
                        found.setdefault(name, {}).setdefault(str(S), {}).setdefault(k, []).append(v)
        with open(A.out, "w", encoding="utf-8") as stream:
            json.dump(found, stream)
        samples = {n: {S: len(v["fp4"]) for S, v in q.items()} for n, q in found.items()}
        print(f"{time.time() - start:.0f}s", samples, flush=True)


if __name__ == "__main__":
    main()
