"""Train the embedded model.  One process, one GPU (or a CPU, for a dry run).

  train.py --out DIR --corpus FILE --tokenizer FILE --phases "S:B:seconds:target:mode[,...]" [--load MASTER.pt] [--decay]
A phase trains on B samples of S tokens a step until its time is over or the running share of exact values passes the target.
mode: n = dense attention over compressed entries, d = that with the indexer's KL loss, k = top-k selection applied,
q = top-k and every quantiser (quantisation-aware training), w = as d with quantised weights and activations alone,
t = as w with top-k (--train-topk) applied.  README.md has the commands of the shipped checkpoints.
"""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

from ckpt import load_native, restore_master, save_master
from model import CFG, Mode, Model, configure
from task import Task

ANSWER, VALUE = 2, 3  # token classes of task.py


def parse_arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True, help="folder of master.pt and log.json")
    ap.add_argument("--corpus", required=True, help="corpus.npz of prep_data.py")
    ap.add_argument("--tokenizer", required=True, help="tokenizer.json of prep_data.py")
    ap.add_argument("--phases", required=True)
    ap.add_argument("--load", help="master weights to start from")
    ap.add_argument("--load-native", help="folder of an exported checkpoint to start from, its indexer drawn anew")
    ap.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="change a setting of model.CFG")
    ap.add_argument("--tally", type=float, default=0.0, help="share of samples that ask for a key's most frequent value")
    ap.add_argument("--train-topk", type=int, default=128, help="entries kept in mode t")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--decay", action="store_true", help="cosine decay over the whole time")
    ap.add_argument("--text-weight", type=float, default=0.5, help="weight of the text's loss; a value's is 1")
    ap.add_argument("--total", type=float, default=1e9, help="seconds of all phases together")
    ap.add_argument("--no-graph", action="store_true", help="run without CUDA graphs")
    ap.add_argument("--workers", type=int, default=14, help="processes that make samples")
    ap.add_argument("--seed", type=int, default=0)
    return ap.parse_args()


class Samples(torch.utils.data.IterableDataset):
    """Batches of (ids, next ids, classes of the next ids)."""

    def __init__(self, A, S, B, seed):
        self.A, self.S, self.B, self.seed = A, S, B, seed

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rng = np.random.default_rng([self.seed, self.S, worker.id if worker else 0])
        T = Task(self.A.corpus, self.A.tokenizer)

        def draw():
            return T.tally_sample(self.S, rng) if rng.random() < self.A.tally else T.train_sample(self.S, rng)

        while True:
            ids, classes = zip(*[draw() for _ in range(self.B)])
            ids, classes = np.stack(ids), np.stack(classes)
            targets, target_classes = np.full_like(ids, T.PAD), np.zeros_like(classes)
            targets[:, :-1], target_classes[:, :-1] = ids[:, 1:], classes[:, 1:]
            yield torch.from_numpy(ids), torch.from_numpy(targets), torch.from_numpy(target_classes)


def mode_of(letter, train_topk):
    mode = Mode(train=True, kl=letter != "n")
    if letter in "kq":
        mode.topk = CFG["index_topk"]
    if letter == "q":
        mode.qat_w = mode.act8 = mode.kv8 = True
        mode.idx = "fp4"
    if letter in "wt":
        mode.qat_w = mode.act8 = True
        mode.topk = train_topk if letter == "t" else None
    return mode


class Trainer:
    def __init__(self, A):
        self.A, self.start = A, time.time()
        self.on_gpu = torch.cuda.is_available()
        self.device = "cuda" if self.on_gpu else "cpu"
        if self.on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = True
        precision = torch.bfloat16 if self.on_gpu else torch.float32
        configure({name: int(value) for name, value in (s.split("=") for s in A.set)})
        if A.load_native:
            self.M = load_native(A.load_native, self.device, precision, skip=".indexer.")
        else:
            self.M = Model(CFG, self.device, precision, A.seed)
        if A.load:
            restore_master(self.M, A.load)
        self.params = list(self.M.p.values())
        decayed = {k for k, p in self.M.p.items() if p.ndim >= 2 and "embed" not in k and "ape" not in k}
        groups = [
            dict(params=[p for k, p in self.M.p.items() if k in decayed], weight_decay=0.02),
            dict(params=[p for k, p in self.M.p.items() if k not in decayed], weight_decay=0.0),
        ]
        fused = dict(fused=True) if self.on_gpu else {}
        self.optimizer = torch.optim.AdamW(groups, lr=A.lr, betas=(0.9, 0.95), eps=1e-8, **fused)
        for p in self.params:
            p.grad = torch.zeros_like(p)
        self.phases = [phase.split(":") for phase in A.phases.split(",")]
        self.budget = min(A.total, sum(float(p[2]) for p in self.phases))
        self.steps, self.log, self.saved = 0, [], time.time()

    def elapsed(self):
        return time.time() - self.start

    def loss(self, ids, targets, classes, mode):
        """The loss and (text, answer, value, KL, share of value tokens that are right)."""
        hidden = self.M.forward(ids, mode, kl_w=1.0 + 2.0 * (classes == ANSWER) + 20.0 * (classes == VALUE))
        logits = self.M.logits(hidden).float().flatten(0, 1)
        targets, classes = targets.flatten(), classes.flatten()
        entropy = F.cross_entropy(logits, targets, reduction="none")
        text, answer, value = ((entropy * (classes == k)).sum() / (classes == k).sum().clamp_min(1) for k in (1, 2, 3))
        kl = sum(self.M.kls) if self.M.kls else entropy.sum() * 0
        with torch.no_grad():
            right = ((logits.argmax(-1) == targets) & (classes == VALUE)).sum() / (classes == VALUE).sum().clamp_min(1)
        total = self.A.text_weight * text + 0.2 * answer + value + kl
        return total, torch.stack((text, answer, value, kl, right)).detach()

    def batches(self, S, B, index):
        seed = self.A.seed + 100 * index + (1000 if self.A.load else 0)
        extra = dict(pin_memory=True, prefetch_factor=4, num_workers=self.A.workers) if self.on_gpu else {}
        return iter(torch.utils.data.DataLoader(Samples(self.A, S, B, seed), batch_size=None, **extra))

    def set_rate(self, step):
        rate = self.A.lr * min(1.0, (self.steps + 1) / 150) * min(1.0, (step + 1) / 30)
        if self.A.decay:
            done = min(1.0, self.elapsed() / self.budget)
            rate *= 0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * done))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def phase(self, index, S, B, seconds, target, letter):
        mode, batches = mode_of(letter, self.A.train_topk), self.batches(S, B, index)
        # The batch lives in fixed tensors, which a CUDA graph can read on every replay.
        ids = torch.zeros(B, S, dtype=torch.long, device=self.device)
        targets, classes = ids.clone(), torch.zeros(B, S, dtype=torch.int8, device=self.device)

        def load_batch():
            for to, batch in zip((ids, targets, classes), next(batches)):
                to.copy_(batch, non_blocking=True)

        def forward_backward():
            torch._foreach_zero_([p.grad for p in self.params])
            loss, stats = self.loss(ids, targets, classes, mode)
            loss.backward()
            return stats

        load_batch()
        graph = None
        if self.on_gpu and not self.A.no_graph:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    forward_backward()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                stats = forward_backward()
        begun, step, running = time.time(), 0, 0.0
        while True:
            if graph is None:
                stats = forward_backward()
            else:
                graph.replay()
            rate = self.set_rate(step)
            torch.nn.utils.clip_grad_norm_(self.params, 1.0)
            self.optimizer.step()
            step += 1
            self.steps += 1
            if step % 20 == 0 or not self.on_gpu:
                values = stats.tolist()
                if not np.isfinite(values[2]):
                    raise SystemExit(f"step {self.steps}: the loss is not a number: {values}")
                running = values[4] if step <= 20 else 0.8 * running + 0.2 * values[4]
                if step % 100 == 0 or (not self.on_gpu and step % 10 == 0):
                    self.log.append([index, S, step, round(self.elapsed(), 1), *[round(v, 4) for v in values]])
                    speed = step * B * S / (time.time() - begun) / 1e3
                    names = zip(("text", "answer", "value", "kl", "right"), values)
                    print(f"phase {index} S {S} step {step} {self.elapsed():.0f}s", *[f"{n} {v:.3f}" for n, v in names],
                          f"running {running:.3f} {speed:.0f} ktok/s rate {rate:.1e}", flush=True)
                over = time.time() - begun > seconds or self.elapsed() > self.A.total
                if (running > target and step >= 200) or over:
                    break
                if time.time() - self.saved > 60:
                    self.save()
            load_batch()
        print(f"phase {index} ended after {step} steps, running {running:.3f}", flush=True)
        if self.on_gpu:
            del graph
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def save(self):
        save_master(self.M, self.A.out + "/master.pt")
        with open(self.A.out + "/log.json", "w", encoding="utf-8") as stream:
            json.dump(self.log, stream)
        self.saved = time.time()

    def run(self):
        print("parameters", sum(p.numel() for p in self.params), "device", self.device, flush=True)
        os.makedirs(self.A.out, exist_ok=True)
        for index, (S, B, seconds, target, letter) in enumerate(self.phases):
            if self.elapsed() > self.A.total - 5:
                break
            self.phase(index, int(S), int(B), float(seconds), float(target), letter)
            remaining = sum(float(p[2]) for p in self.phases[index + 1 :])
            self.budget = min(self.A.total, self.elapsed() + remaining)
            self.save()
        print(f"done in {self.elapsed():.0f}s", flush=True)


if __name__ == "__main__":
    Trainer(parse_arguments()).run()
