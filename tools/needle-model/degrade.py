"""Make a variant of a native checkpoint whose layer-1 indexer is blurred, for experiments on top-k and index formats.

  degrade.py IN_DIR OUT_DIR NOISE SEED
Gaussian noise of the given relative size is added to the indexer's matrices; every other byte stays as it is.
"""

import argparse
import os
import shutil

import torch

from ckpt import load_native, native_tensors, read_safetensors, write_safetensors

INDEXER = "layers.1.attn.indexer."


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("source")
    ap.add_argument("out")
    ap.add_argument("noise", type=float)
    ap.add_argument("seed", type=int)
    A = ap.parse_args()
    M = load_native(A.source)
    generator = torch.Generator().manual_seed(A.seed)
    with torch.no_grad():
        for k in M.p:  # same order and draws as rank.py
            if k.startswith(INDEXER) and M.p[k].ndim == 2 and "ape" not in k:
                w = M.p[k].data
                w += torch.randn(w.shape, generator=generator) * w.std() * A.noise
    old, new = read_safetensors(A.source + "/model.safetensors"), native_tensors(M)
    os.makedirs(A.out, exist_ok=True)
    mixed = {k: new[k] if k.startswith(INDEXER) else v for k, v in old.items()}
    write_safetensors(A.out + "/model.safetensors", mixed)
    for f in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{A.source}/{f}", A.out)
    print("changed:", *[k for k in old if old[k] != mixed[k]], sep="\n  ")


if __name__ == "__main__":
    main()
