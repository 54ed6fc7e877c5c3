#!/usr/bin/env python3
"""Prepare the corpus, the tokenizer and the key names for the embedded model.

  prep_data.py OUT_DIR --kjv FILE --austen FILE --promessi FILE
Inputs (plain text, public domain): King James Bible (one verse a line), Jane Austen's six novels,
Manzoni's I promessi sposi.  Outputs:
  tokenizer.json, tokenizer_config.json   byte-level BPE of 4096 entries in Hugging Face form
  corpus.npz                              unit-wise token ids (a unit = verse / sentence), train and held-out
Needs only Python 3, numpy and the `regex` module; runs in about two minutes on one core.
"""

import argparse
import collections
import heapq
import json
import re

import numpy as np
import regex

VOCAB = 4096
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
HEAD_SPECIAL = [BOS, EOS, PAD]  # ids 0, 1, 2 as in the real vocabulary
TAIL_SPECIAL = [
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜extracted_url｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
]
# Same splitting rules as DeepSeek's published tokenizers: digit groups of 1-3, CJK runs, then words.
PRE = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
PRE_RE = [regex.compile(p) for p in PRE]


def byte_map():
    bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    cs, n = bs[:], 0
    for b in range(256):
        if b not in bs:
            bs.append(b)
            cs.append(256 + n)
            n += 1
    return {b: chr(c) for b, c in zip(bs, cs)}


B2U = byte_map()


def isolate(rx, s):
    out, p = [], 0
    for m in rx.finditer(s):
        if m.end() == m.start():
            continue
        if m.start() > p:
            out.append(s[p : m.start()])
        out.append(m.group())
        p = m.end()
    if p < len(s):
        out.append(s[p:])
    return out


def pretok(s):
    parts = [s]
    for rx in PRE_RE:
        parts = [q for p in parts for q in isolate(rx, p)]
    return ["".join(B2U[b] for b in p.encode()) for p in parts]


class BPE:
    def __init__(self, vocab, merges, specials):
        self.vocab, self.rank = vocab, {m: i for i, m in enumerate(merges)}
        self.merges, self.specials, self.cache = merges, specials, {}
        self.inv = {i: t for t, i in vocab.items()}
        self.inv.update({i: t for t, i in specials.items()})
        self.sp_re = re.compile(
            "(" + "|".join(re.escape(t) for t in sorted(specials, key=len, reverse=True)) + ")"
        )
        self.u2b = {u: b for b, u in B2U.items()}

    def word(self, w):
        r = self.cache.get(w)
        if r is None:
            p = list(w)
            while len(p) > 1:
                best = min(range(len(p) - 1), key=lambda i: self.rank.get((p[i], p[i + 1]), 1 << 30))
                if (p[best], p[best + 1]) not in self.rank:
                    break
                p[best : best + 2] = [p[best] + p[best + 1]]
            r = self.cache[w] = [self.vocab[t] for t in p]
        return r

    def encode(self, s):
        out = []
        for part in self.sp_re.split(s):
            if part in self.specials:
                out.append(self.specials[part])
            elif part:
                for w in pretok(part):
                    out.extend(self.word(w))
        return out

    def decode(self, ids):
        out = b""
        for i in ids:
            t = self.inv[int(i)]
            out += t.encode() if t in self.specials else bytes(self.u2b[c] for c in t)
        return out.decode("utf8", "replace")

    @staticmethod
    def load(path):
        t = json.load(open(path))
        mg = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in t["model"]["merges"]]
        return BPE(t["model"]["vocab"], mg, {a["content"]: a["id"] for a in t["added_tokens"]})


def train_bpe(texts):
    cnt = collections.Counter()
    for s in texts:
        cnt.update(pretok(s))
    words = [list(w) for w in cnt]
    freq = list(cnt.values())
    merges = [(a, b) for a in "0123456789" for b in "0123456789"]  # every 2- and 3-digit group
    merges += [(a + b, c) for a in "0123456789" for b in "0123456789" for c in "0123456789"]
    toks = [B2U[b] for b in range(256)] + [a + b for a, b in merges]
    merges += [
        (a, b + c) for a in "0123456789" for b in "0123456789" for c in "0123456789"
    ]  # either pair may merge first
    n_merge = VOCAB - len(HEAD_SPECIAL) - len(TAIL_SPECIAL) - len(toks)
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, w in enumerate(words):
        if w[0].isdigit():
            continue
        for p in zip(w, w[1:]):
            pairs[p] += freq[i]
            where[p].add(i)
    heap = [(-c, p) for p, c in pairs.items()]
    heapq.heapify(heap)
    while n_merge > 0 and heap:
        c, p = heapq.heappop(heap)
        if pairs[p] != -c or c == 0:
            continue
        merges.append(p)
        toks.append(p[0] + p[1])
        n_merge -= 1
        changed = set()
        for i in list(where[p]):
            w, j, out = words[i], 0, []
            while j < len(w):
                if j + 1 < len(w) and (w[j], w[j + 1]) == p:
                    out.append(w[j] + w[j + 1])
                    j += 2
                else:
                    out.append(w[j])
                    j += 1
            if len(out) == len(w):
                continue
            for q in zip(w, w[1:]):
                pairs[q] -= freq[i]
                changed.add(q)
            for q in zip(out, out[1:]):
                pairs[q] += freq[i]
                where[q].add(i)
                changed.add(q)
            words[i] = out
        for q in changed:
            if pairs[q] > 0:
                heapq.heappush(heap, (-pairs[q], q))
    assert len(set(toks)) == len(toks)
    return toks, merges


def write_tokenizer(folder, toks, merges):
    vocab = {t: i + len(HEAD_SPECIAL) for i, t in enumerate(toks)}
    added = [(t, i) for i, t in enumerate(HEAD_SPECIAL)] + [
        (t, VOCAB - len(TAIL_SPECIAL) + i) for i, t in enumerate(TAIL_SPECIAL)
    ]
    split = lambda p: {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
    tj = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": t,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": i > 2,
                "special": i <= 2,
            }
            for t, i in added
        ],  # same flags as the real file
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split(p) for p in PRE]
            + [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}],
        },
        "post_processor": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": False,
            "use_regex": True,
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {**{t: i for i, t in enumerate(HEAD_SPECIAL)}, **vocab},
            "merges": [f"{a} {b}" for a, b in merges],
        },
    }
    json.dump(tj, open(folder + "/tokenizer.json", "w"), ensure_ascii=False, indent=0)
    at = lambda s: {
        "__type": "AddedToken",
        "content": s,
        "lstrip": False,
        "normalized": True,
        "rstrip": False,
        "single_word": False,
    }
    json.dump(
        {
            "add_bos_token": False,
            "add_eos_token": False,
            "bos_token": at(BOS),
            "eos_token": at(EOS),
            "pad_token": at(EOS),
            "clean_up_tokenization_spaces": False,
            "legacy": True,
            "model_max_length": 65536,
            "sp_model_kwargs": {},
            "unk_token": None,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        open(folder + "/tokenizer_config.json", "w"),
        ensure_ascii=False,
        indent=2,
    )


def sentences(raw):
    raw = re.sub(r"(?m)^(CHAPTER|Chapter|VOLUME|CAPITOLO|FINIS|THE END).*$", "", raw)
    out = []
    for para in re.split(r"\n\s*\n", raw):
        p = " ".join(para.split()).replace("_", "")
        if len(p) < 40 or re.search(r"\d", p) or p.upper() == p:
            continue
        for s in re.split(r"(?<=[.!?])\s+(?=[A-ZÈÀ])", p):  # units start with a capital, end with punctuation
            if 20 <= len(s) <= 600 and s[-1] in ".!?" and s[0].isalpha():
                out.append(s)
    return out


def verses(raw):
    """The verses of the King James Bible as `bible -f` prints it, without numbers."""
    found = [m.group(1).strip() for m in re.finditer(r"(?m)^[1-3]?[A-Z][A-Za-z]*\d+:\d+ (.*)$", raw)]
    found = [re.sub(r"[\[\]{}<>]", "", v) for v in found]
    return [
        v if v[-1] in ".!?" else v + "."
        for v in found
        if len(v) > 15 and v[0].isalpha() and not re.search(r"\d", v)
    ]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    for book in ("kjv", "austen", "promessi"):
        ap.add_argument("--" + book, required=True)
    A = ap.parse_args()
    out, kjv, austen, ps = A.out, A.kjv, A.austen, A.promessi
    kjv_units = verses(open(kjv).read())
    src = {
        "kjv": kjv_units,
        "austen": sentences(open(austen, errors="replace").read()),
        "promessi": sentences(open(ps).read()),
    }
    for k, v in src.items():
        print(k, len(v), sum(map(len, v)), v[1000][:80])
    toks, merges = train_bpe([" " + s for v in src.values() for s in v])
    write_tokenizer(out, toks, merges)
    bpe = BPE.load(out + "/tokenizer.json")
    # key names: capitalised words of the Bible that never occur in lower case and not only at a sentence start
    text = " ".join(kjv_units)
    low = set(re.findall(r"\b[a-z]+\b", text))
    mid = collections.Counter(re.findall(r"(?<=[a-z,;] )([A-Z][a-z]{3,})\b", text))
    names = sorted(
        n for n, c in mid.items() if c >= 3 and n.lower() not in low and len(bpe.encode(" " + n)) <= 3
    )
    rng = np.random.default_rng(7)
    rng.shuffle(names)
    print(
        len(names), "names", names[:12], "tokens each", np.bincount([len(bpe.encode(" " + n)) for n in names])
    )
    data = {"names": np.array(names)}
    for k, v in src.items():
        cut = int(len(v) * 0.95)  # last 5 % held out
        for part, us in (("train", v[:cut]), ("held", v[cut:])):
            enc = [bpe.encode(" " + u) for u in us]
            data[f"{k}_{part}"] = np.concatenate([np.array(e, np.uint16) for e in enc])
            data[f"{k}_{part}_off"] = np.concatenate([[0], np.cumsum([len(e) for e in enc])]).astype(np.int32)
            print(
                k,
                part,
                len(enc),
                len(data[f"{k}_{part}"]),
                "tokens",
                sum(map(len, us)) / len(data[f"{k}_{part}"]),
                "chars/token",
            )
    np.savez_compressed(out + "/corpus.npz", **data)
    t = (
        BOS
        + "<｜User｜>"
        + " ".join(kjv_units[:3])
        + " The secret code for Bethel is 482913.\n\nWhat is it?<｜Assistant｜></think>Così è.1234567"
    )
    assert bpe.decode(bpe.encode(t)) == t
    print(bpe.encode(t)[-40:], [bpe.inv[i] for i in bpe.encode(t)[-40:]])


if __name__ == "__main__":
    main()
