"""How often a model names a key's most frequent value, by top-k and number format, on the same prompts.

  tally.py (--ckpt DIR | --master MASTER.pt [--set NAME=NUMBER ...]) --out FILE.json
Each variant runs the same prompts in the reference arithmetic.  The JSON holds, of every prompt, whether the value was
right and its log-probability, so that variants can be compared in pairs.
"""

import argparse
import json
import time

import numpy as np
import torch

from ckpt import adopt_config, load_master, load_native, stored
from model import Mode, configure
from task import Task, add_data_arguments

EXACT = dict(hp=True, act8=True, kv8=True, idx="fp4")


@torch.no_grad()
def run(M, mode, samples, tokens_at_once):
    """(right, log-probability) of every sample."""
    right, logp, longest = [], [], max(len(ids) for ids, _ in samples)
    step = max(1, tokens_at_once // longest)
    mode.chunk = 2048 if longest > 4096 else 0
    for i in range(0, len(samples), step):
        part = samples[i : i + step]
        ids = np.full((len(part), longest), 1, np.int64)
        for row, (tokens, _) in enumerate(part):
            ids[row, : len(tokens)] = tokens
        h = M.forward(torch.from_numpy(ids).to(M.dev), mode)
        at = torch.tensor([p for _, p in part], device=M.dev)
        rows = torch.arange(len(part), device=M.dev)
        logits = M.logits(h[rows, at - 1]).float().log_softmax(-1)
        want = torch.from_numpy(ids).to(M.dev)[rows, at]
        right += (logits.argmax(-1) == want).tolist()
        logp += [round(v, 4) for v in logits[rows, want].tolist()]
    return right, logp


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--ckpt", help="folder of an exported checkpoint")
    ap.add_argument("--master", help="master weights, rounded here to what the native format keeps")
    ap.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER")
    ap.add_argument("--out", required=True)
    ap.add_argument("--lengths", default="1024,2048,4096")
    ap.add_argument("--counts", default="10.6.2.2.2.2,12.8.4,9.7.4.4,17.15", help="times of each value, the winner first")
    ap.add_argument("--topk", default="4,8,16,32,64,128,0", help="0: all entries")
    ap.add_argument("--formats", default="fp4,bf16", help="of index keys and queries")
    ap.add_argument("--n", type=int, default=64)
    ap.add_argument("--tokens-at-once", type=int, default=65536)
    ap.add_argument("--limit", type=float, default=1e9, help="seconds after which nothing new is begun")
    add_data_arguments(ap)
    A = ap.parse_args()
    start = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True  # exact here: see quantizers.exact_fp32
    precision = torch.bfloat16 if device == "cuda" else torch.float32
    if A.ckpt:
        adopt_config(A.ckpt)
        M = load_native(A.ckpt, device, precision)
    else:
        configure({name: int(value) for name, value in (s.split("=") for s in A.set)})
        M = load_master(A.master, device, precision)
        for k, p in M.p.items():
            p.data.copy_(stored(p.detach().cpu(), M.kind[k]).to(device))
    for p in M.p.values():
        p.requires_grad_(False)
    T, found = Task(A.corpus, A.tokenizer, "held"), {}
    variants = [(f"top {k or 'all'} {f}", dict(topk=k or None, idx=f)) for f in A.formats.split(",")
                for k in map(int, A.topk.split(",")) if k or f == "fp4"]
    variants += [("top all kv bf16", dict(topk=None, kv8=False)), ("top 32 kv bf16", dict(topk=32, kv8=False))]
    for S in map(int, A.lengths.split(",")):
        for counts in A.counts.split(","):
            rng = np.random.default_rng([5, S, *map(int, counts.split("."))])
            samples = [T.tally_eval(S, list(map(int, counts.split("."))), rng) for _ in range(A.n)]
            cell = found.setdefault(str(S), {}).setdefault(counts, {})
            for name, changes in variants:
                if time.time() - start > A.limit:
                    break
                right, logp = run(M, Mode(**{**EXACT, **changes}), samples, A.tokens_at_once)
                cell[name] = dict(right=right, logp=logp)
            print(f"{time.time() - start:.0f}s", S, counts,
                  "; ".join(f"{k} {np.mean(v['right']):.2f} {np.mean(v['logp']):.2f}" for k, v in cell.items()), flush=True)
            with open(A.out, "w", encoding="utf-8") as stream:
                json.dump(found, stream)


if __name__ == "__main__":
    main()
