#!/usr/bin/env python3
"""Add further texts to a corpus, in the tokens of an existing tokenizer.

  prep_more.py CORPUS.npz OUT.npz --tokenizer tokenizer.json TEXT...
CORPUS.npz may be the held-out part that comes with the model: it has the key names.  Each text is plain and out of copyright; a Project Gutenberg file's own header and licence are cut off.  The last 5 %
of every text's sentences are held out, as in prep_data.py.
"""

import argparse
import re

import numpy as np

from prep_data import BPE, sentences, verses


def body(path):
    raw = open(path, encoding="utf-8", errors="replace").read().replace("\r\n", "\n")
    begin = re.search(r"\*\*\* ?START OF TH[^\n]*\n", raw)
    end = re.search(r"\*\*\* ?END OF TH", raw)
    raw = raw[begin.end() if begin else 0 : end.start() if end else len(raw)]
    return raw.replace("“", '"').replace("”", '"').replace("’", "'").replace("‘", "'")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("corpus")
    ap.add_argument("out")
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("texts", nargs="+")
    A = ap.parse_args()
    bpe = BPE.load(A.tokenizer)
    parts = {"train": [], "held": []}
    for path in A.texts:
        raw = body(path)
        units = verses(raw) or sentences(raw)
        cut = int(len(units) * 0.95)
        parts["train"] += units[:cut]
        parts["held"] += units[cut:]
        print(path, len(units), "sentences", flush=True)
    data = dict(np.load(A.corpus))
    for part, units in parts.items():
        tokens = [np.array(bpe.encode(" " + u), np.uint16) for u in units]
        data["more_" + part] = np.concatenate(tokens)
        data[f"more_{part}_off"] = np.concatenate([[0], np.cumsum([len(t) for t in tokens])]).astype(np.int32)
        print(part, len(units), "sentences", len(data["more_" + part]), "tokens", flush=True)
    np.savez_compressed(A.out, **data)


if __name__ == "__main__":
    main()
