"""Needle-in-a-haystack samples in the real chat encoding, and their token classes.

One sample:  <BOS><User>{haystack with needles} That is the end of the text.\n\n{question}<Assistant></think>{answer}<EOS>
             then, in training, further turns <User>{question}<Assistant></think>{answer}<EOS> about other needles.
Class of a token (as a prediction target): 0 ignore, 1 text, 2 answer wording, 3 answer value.
"""

import argparse
import os

import numpy as np

from prep_data import BPE

MODEL_FOLDER = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/needle"))


def add_data_arguments(ap):
    """The held-out texts and the tokenizer that come with the model, unless others are named."""
    ap.add_argument("--corpus", default=MODEL_FOLDER + "/heldout/corpus.npz")
    ap.add_argument("--tokenizer", default=MODEL_FOLDER + "/tokenizer.json")


NEEDLE = [
    " The secret code for {} is",
    " Remember that the secret code for {} is",
    " It is written that the secret code for {} is",
    " Know that the secret code for {} is",
    " And the secret code for {} is",
]
ASK = [
    "What is the secret code for {}?",
    "Tell me the secret code for {}.",
    "Recall the secret code for {}.",
    "Say the secret code for {}.",
    "Which code is the secret code for {}?",
]
ASK_TALLY = "Which secret code for {} is given most often?"
ANSWER = "The secret code for {} is"
TAIL = " That is the end of the text.\n\n"


class Task:
    def __init__(self, corpus, tokenizer, split="train"):
        self.bpe = BPE.load(tokenizer)
        d = np.load(corpus)
        shares = {"kjv": 0.5, "austen": 0.38, "promessi": 0.12, "more": 1.5}  # "more": of prep_more.py
        shares = {k: v for k, v in shares.items() if f"{k}_{split}" in d}
        self.books = [(d[f"{k}_{split}"].astype(np.int32), d[f"{k}_{split}_off"]) for k in shares]
        self.bookp = np.array(list(shares.values())) / sum(shares.values())
        names = list(d["names"])
        n_held = len(names) // 10
        self.names = names[n_held:] if split == "train" else names
        self.n_unseen = n_held  # in the held-out split: names[:n_unseen] were never keys
        self.cache = {}
        sp = self.bpe.specials
        self.BOS, self.EOS, self.PAD = 0, 1, 2
        self.USER, self.ASSIST, self.NOTHINK = sp["<｜User｜>"], sp["<｜Assistant｜>"], sp["</think>"]
        self.SPACE, self.DOT = int(self.e(" ")[0]), int(self.e(".")[0])
        self.d3 = np.array([self.bpe.vocab[f"{i:03d}"] for i in range(1000)], np.int32)
        assert list(self.e(" The x is 012907.")[-4:]) == [self.SPACE, self.d3[12], self.d3[907], self.DOT]

    def e(self, s):
        """Token ids of a short text; sentences recur, so they are kept."""
        ids = self.cache.get(s)
        if ids is None:
            ids = np.array(self.bpe.encode(s), np.int32)
            if len(self.cache) < 200000:
                self.cache[s] = ids
        return ids

    def needle(self, key, val, rng):
        """ids, classes of one needle sentence (its value is unpredictable, hence ignored by the loss)."""
        a = self.e(NEEDLE[rng.integers(len(NEEDLE))].format(key))
        ids = np.concatenate((a, [self.SPACE], val, [self.DOT]))
        cls = np.ones(len(ids), np.int8)
        cls[len(a) + 1 : len(a) + 1 + len(val)] = 0
        return ids, cls

    def turn(self, key, val, rng, first, ask=None):
        q = self.e((TAIL if first else "") + (ask or ASK[rng.integers(len(ASK))]).format(key))
        a = self.e(ANSWER.format(key))
        ids = np.concatenate(
            (
                [] if first else [self.USER],
                q,
                [self.ASSIST, self.NOTHINK],
                a,
                [self.SPACE],
                val,
                [self.DOT, self.EOS],
            )
        ).astype(np.int32)
        cls = np.full(len(ids), 2, np.int8)
        cls[: len(ids) - len(a) - len(val) - 4] = 1
        cls[len(ids) - 2 - len(val) : len(ids) - 2] = 3
        return ids, cls

    def value(self, rng, groups):
        return self.d3[rng.integers(0, 1000, groups)]

    def text(self, n, rng, book=None):
        """At most n tokens of consecutive whole units: ids and the unit start offsets inside them."""
        ids, off = self.books[rng.choice(len(self.books), p=self.bookp) if book is None else book]
        if n <= 0:
            return np.zeros(0, np.int32), np.zeros(1, np.int64)
        parts, offs, have = [], [0], 0
        while True:  # wraps round the book when it is too short
            u = int(rng.integers(len(off) - 1))
            v = int(np.searchsorted(off, off[u] + n - have, "right")) - 1
            parts.append(ids[off[u] : off[v]])
            offs += list(off[u + 1 : v + 1] - off[u] + have)
            have += int(off[v] - off[u])
            if v < len(off) - 1 or n - have < 40:
                break
        return np.concatenate(parts), np.array(offs)

    def train_sample(self, S, rng, groups=2):
        dense = rng.random() < 0.6
        cap = max(2, S // (80 if rng.random() < 0.6 else 40))
        nq_cap = max(1, min(8, (S - 60) // 64))
        n = int(rng.integers(2, cap + 1)) if dense else int(rng.integers(1, 5))
        n = min(n, cap, 250)
        nq = min(n, nq_cap)
        keys = [self.names[j] for j in rng.choice(len(self.names), n, replace=False)]
        vals = [self.value(rng, groups if rng.random() < 0.85 else 1) for _ in keys]
        turns = [self.turn(keys[j], vals[j], rng, t == 0) for t, j in enumerate(rng.permutation(n)[:nq])]
        needles = [self.needle(k, v, rng) for k, v in zip(keys, vals)]
        used = 2 + sum(len(t[0]) for t in turns) + sum(len(t[0]) for t in needles)
        hay, off = self.text(S - used, rng)
        cut = np.sort(off[rng.integers(0, len(off), n)])
        ids, cls, p = [np.array([self.BOS, self.USER], np.int32)], [np.zeros(2, np.int8)], 0
        for c, (a, b) in zip(cut, needles):
            ids += [hay[p:c], a]
            cls += [np.ones(c - p, np.int8), b]
            p = c
        ids.append(hay[p:])
        cls.append(np.ones(len(hay) - p, np.int8))
        for a, b in turns:
            ids.append(a)
            cls.append(b)
        ids, cls = np.concatenate(ids), np.concatenate(cls)
        out, oc = np.full(S, self.PAD, np.int32), np.zeros(S, np.int8)
        out[: len(ids)], oc[: len(ids)] = ids[:S], cls[:S]
        return out, oc

    def ballot(self, votes, rng):
        """How often each value of a key is given, the winner first: the winner's share lies between 0.35 and 0.75."""
        counts = [max(2, round(votes * rng.uniform(0.35, 0.75)))]
        while sum(counts) < votes:
            counts.append(int(rng.integers(1, min(counts[0] - 1, votes - sum(counts)) + 1)))
        return counts

    def reports(self, key, counts, rng):
        """Needles of one key, values given as often as `counts` says, and the winner."""
        values = [self.d3[j] for j in rng.choice(1000, len(counts), replace=False)]
        needles = [self.needle(key, [v], rng) for v, n in zip(values, counts) for _ in range(n)]
        return needles, np.array([values[0]], np.int32)

    def scatter(self, hay, off, needles, rng):
        """Needles at unit starts of the text, each place drawn anew and the order too."""
        cut = np.sort(off[rng.integers(0, len(off), len(needles))])
        ids, cls, p = [], [], 0
        for c, j in zip(cut, rng.permutation(len(needles))):
            ids += [hay[p:c], needles[j][0]]
            cls += [np.ones(c - p, np.int8), needles[j][1]]
            p = c
        return ids + [hay[p:]], cls + [np.ones(len(hay) - p, np.int8)]

    def tally_sample(self, S, rng):
        """Training: several keys with many values each; asked is the value that a key is given most often."""
        room = int((S - 80) / rng.uniform(22, 60))
        counts = []
        while room >= 3 and len(counts) < 60:
            votes = int(min(room, np.exp(rng.uniform(np.log(3), np.log(41)))))
            counts.append(self.ballot(votes, rng))
            room -= sum(counts[-1])
        keys = [self.names[j] for j in rng.choice(len(self.names), len(counts), replace=False)]
        groups = [self.reports(k, c, rng) for k, c in zip(keys, counts)]
        asked = rng.permutation(len(keys))[: max(1, min(8, (S - 60) // 128))]
        turns = [self.turn(keys[j], groups[j][1], rng, t == 0, ASK_TALLY) for t, j in enumerate(asked)]
        needles = [n for g in groups for n in g[0]]
        used = 2 + sum(len(t[0]) for t in turns) + sum(len(n[0]) for n in needles)
        ids, cls = self.scatter(*self.text(S - used, rng), needles, rng)
        ids = np.concatenate([[self.BOS, self.USER], *ids, *[t[0] for t in turns]])
        cls = np.concatenate([[0, 0], *cls, *[t[1] for t in turns]])
        out, oc = np.full(S, self.PAD, np.int32), np.zeros(S, np.int8)
        out[: len(ids)], oc[: len(ids)] = ids[:S], cls[:S]
        return out, oc

    def tally_eval(self, S, counts, rng, every=24):
        """One question about a key with `counts`; one report per `every` tokens in all, the others of keys like it."""
        others = max(0, S // every - sum(counts))
        n = 1 + -(-others // sum(counts))
        keys = [self.names[j] for j in self.n_unseen + rng.choice(len(self.names) - self.n_unseen, n, replace=False)]
        groups = [self.reports(k, counts, rng) for k in keys]
        rest = [x for g in groups[1:] for x in g[0]]
        needles = groups[0][0] + [rest[j] for j in rng.permutation(len(rest))[:others]]
        turn = self.turn(keys[0], groups[0][1], rng, True, ASK_TALLY)[0]
        hay, off = self.text(S - 2 - len(turn) - sum(len(x[0]) for x in needles), rng)
        ids = np.concatenate([[self.BOS, self.USER], *self.scatter(hay, off, needles, rng)[0], turn])
        out = np.full(-(-len(ids) // 128) * 128, self.EOS, np.int32)
        out[: len(ids)] = ids
        return out, len(ids) - 3  # the value's position

    def eval_sample(self, S, depth, rng, every=0, extra=3, groups=2, unseen=False):
        """One question about one needle at the given depth (0..1); distractor needles: `extra`, or one per `every` tokens.
        Returns ids (padded to a multiple of 128), the positions of the value tokens, those of the value in the needle.
        """
        n = 1 + (max(extra, int(S // every)) if every else extra)
        if unseen:
            first = int(rng.integers(self.n_unseen))
        else:
            first = self.n_unseen + int(rng.integers(len(self.names) - self.n_unseen))
        rest = [
            int(j) for j in rng.choice(len(self.names), min(n, len(self.names)), replace=False) if j != first
        ][: n - 1]
        keys = [self.names[first]] + [self.names[j] for j in rest]
        vals = [self.value(rng, groups) for _ in keys]
        t_ids, t_cls = self.turn(keys[0], vals[0], rng, True)
        needles = [self.needle(k, v, rng) for k, v in zip(keys, vals)]
        hay, off = self.text(S - 2 - len(t_ids) - sum(len(a) for a, _ in needles), rng)
        where = [(int(off[int(round(depth * (len(off) - 1)))]), 0)]
        where += [(int(off[rng.integers(len(off))]), j) for j in range(1, len(keys))]
        where.sort(key=lambda w: (w[0], w[1] != 0 if depth < 1 else w[1] == 0))
        ids, p, src = [np.array([self.BOS, self.USER], np.int32)], 0, None
        for c, j in where:
            ids += [hay[p:c], needles[j][0]]
            p = c
            if j == 0:
                src = sum(map(len, ids)) - 1 - groups
        ids += [hay[p:], t_ids]
        ids = np.concatenate(ids)
        pos = len(ids) - 2 - groups
        L = -(-len(ids) // 128) * 128
        out = np.full(L, self.EOS, np.int32)
        out[: len(ids)] = ids
        return out, np.arange(pos, pos + groups), np.arange(src, src + groups)

    def show(self, ids):
        return self.bpe.decode(ids)


def main():
    ap = argparse.ArgumentParser(description="Print samples of the task, checking that their texts encode to their tokens.")
    add_data_arguments(ap)
    A = ap.parse_args()
    T, rng = Task(A.corpus, A.tokenizer, "held"), np.random.default_rng(0)
    for S, every in ((256, 0), (2048, 128), (32768, 128)):
        for depth in (0, 0.5, 1):
            ids, pos, src = T.eval_sample(S, depth, rng, every)
            assert (ids[pos] == ids[src]).all()
            text = T.show(ids)
            assert T.bpe.encode(text) == list(ids)
            print(S, depth, "value at", list(src), "asked at", list(pos), repr(T.show(ids[pos[0] - 12 : pos[-1] + 3])))


if __name__ == "__main__":
    main()
