#!/usr/bin/env python3
"""pivot and its peers on one CPU, in one run, on the embedded model: prefill and decode, and whether the greedy tokens agree.

    python3 -m venv build/peers-venv && build/peers-venv/bin/pip install -r bench/peers/requirements.txt
    build/peers-venv/bin/pip download --no-deps --no-binary xllamacpp xllamacpp==2026.10.11549 -d build/peers
    build/peers-venv/bin/python bench/peers/run.py --pivot build/release/bin/pivot --model build/release/share/pivot/needle \\
        --llama-cpp build/peers/xllamacpp-2026.10.11549.tar.gz --out bench/results/cpu-peers.json

--llama-cpp names a source distribution or a checkout that holds llama.cpp's converter; without it llama.cpp is left out. Every peer is a process that keeps its model; they take turns, so that what else the machine does meets all of them, and
one that waits uses no core. A peer that cannot run is in the result with what it said."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

import prepare

HERE = os.path.dirname(os.path.abspath(__file__))


class Peer:
    def __init__(self, name, model, threads):
        self.name = name
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "worker.py"), name, model, str(threads)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.about = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        said = [line for line in self.process.stderr.read().splitlines() if line.strip()]
        return {"error": " | ".join(said[-2:])[:500] or f"ended with {self.process.wait()}"}

    def run(self, ids, steps):
        try:
            self.process.stdin.write(json.dumps({"ids": ids, "steps": steps}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": "the process has ended"}
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait()


class Pivot:
    """The program itself: each turn is a run of `pivot generate`, timed by its own clock without loading."""

    name = "pivot"

    def __init__(self, program, model, threads):
        self.command = [program, "generate", model, "--device", "cpu", "--threads", str(threads), "--greedy", "--ignore-eos",
                        "--json"]
        version = json.loads(subprocess.run([program, "--version", "--json"], capture_output=True, text=True, check=True).stdout)
        self.about = {"peer": "pivot", "version": f"pivot {version['version']} ({version['commit']}, {version['build_type']})",
                      "weights": "native"}

    def run(self, ids, steps):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(ids, file)
            file.flush()
            run = subprocess.run(self.command + ["--ids", file.name, "--max-tokens", str(steps)], capture_output=True, text=True,
                                 check=False)
        if run.returncode != 0:
            return {"error": run.stderr.strip()}
        result = json.loads(run.stdout)
        timings = result["timings"]
        return {"tokens": [token["id"] for token in result["tokens"]], "prefill_seconds": timings["prefill_seconds"],
                "decode_seconds": timings["decode_seconds"]}

    def close(self):
        pass


def agreement(ours, theirs):
    """How many tokens from the first on are the same."""
    same = 0
    for a, b in zip(ours, theirs):
        if a != b:
            break
        same += 1
    return same


def measure(peers, prompts, steps, rounds, slow_steps):
    results = []
    for case in prompts:
        # Without its last token, the end of the sentence, which llama.cpp forbids where it is not to stop at it.
        ids, answer = case["prompt_tokens"], len(case["answer_tokens"]) - 1
        runs = {peer.name: [] for peer in peers}
        for turn in range(rounds + 1):  # the first is a warm-up
            for peer in peers:
                wanted = slow_steps if peer.name == "plain-pytorch" else steps
                result = peer.run(ids, wanted)
                if turn > 0 or "error" in result:
                    runs[peer.name].append(result)
        ours = [run for run in runs["pivot"] if "error" not in run]
        for peer in peers:
            good = [run for run in runs[peer.name] if "error" not in run]
            row = {"prompt_tokens": len(ids), "peer": peer.name}
            if not good:
                row["error"] = runs[peer.name][0]["error"]
                results.append(row)
                continue
            count = len(good[0]["tokens"])
            row.update(
                steps=count,
                prefill_tokens_per_second=len(ids) / statistics.median(run["prefill_seconds"] for run in good),
                prefill_tokens_per_second_best=len(ids) / min(run["prefill_seconds"] for run in good),
                same_tokens=agreement(ours[0]["tokens"], good[0]["tokens"]) if ours else None,
                answer_tokens=answer,
                same_answer=bool(ours) and agreement(ours[0]["tokens"], good[0]["tokens"]) >= min(answer, count),
                right_answer=good[0]["tokens"][:answer] == case["answer_tokens"][:count])
            if count > 1:
                row.update(
                    decode_tokens_per_second=(count - 1) / statistics.median(run["decode_seconds"] for run in good),
                    decode_tokens_per_second_best=(count - 1) / min(run["decode_seconds"] for run in good))
            results.append(row)
    return results


def add_ratios(results):
    for row in results:
        ours = next(r for r in results if r["peer"] == "pivot" and r["prompt_tokens"] == row["prompt_tokens"])
        for kind in ("prefill", "decode"):
            key = f"{kind}_tokens_per_second"
            if key in row and key in ours:
                row[f"pivot_{kind}_ratio"] = ours[key] / row[key]


def show(report):
    print(f"{report['machine']['cpu']}, {report['threads']} threads, load {report['machine']['load_average'][0]:.1f}")
    for about in report["peers"]:
        print(f"  {about['peer']}: {about.get('error') or about['version'] + ', ' + about['weights'] + ' weights'}")
    head = ("prompt", "peer", "prefill tok/s", "pivot is", "decode tok/s", "pivot is", "same tokens")
    print("{:>7}  {:<22} {:>14} {:>9} {:>13} {:>9} {:>12}".format(*head))
    for row in report["results"]:
        if "error" in row:
            print(f"{row['prompt_tokens']:>7}  {row['peer']:<22} {row['error'][:80]}")
            continue
        print("{:>7}  {:<22} {:>14.1f} {:>8.2f}x {:>13.1f} {:>8.2f}x {:>5} of {:>3}".format(
            row["prompt_tokens"], row["peer"], row["prefill_tokens_per_second"], row["pivot_prefill_ratio"],
            row.get("decode_tokens_per_second", float("nan")), row.get("pivot_decode_ratio", float("nan")),
            row["same_tokens"], row["steps"]))


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--pivot", required=True, help="the program")
    ap.add_argument("--model", required=True, help="folder of the embedded model, weights unpacked")
    ap.add_argument("--cases", default=os.path.join(prepare.REPOSITORY, "models", "needle", "needle_cases.json"))
    ap.add_argument("--prompts", type=int, default=2, help="how many of the cases, the longest first")
    ap.add_argument("--steps", type=int, default=48, help="tokens to generate")
    ap.add_argument("--slow-steps", type=int, default=3, help="of a peer that computes everything again for each token")
    ap.add_argument("--rounds", type=int, default=5, help="turns of each peer; the median counts")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--llama-cpp", help="what holds llama.cpp's converter: a .tar.gz or a folder")
    ap.add_argument("--gguf-type", default="auto", help="--outtype of the converter")
    ap.add_argument("--peers", default="transformers-float32,transformers-bfloat16,plain-pytorch,llama.cpp")
    ap.add_argument("--scratch", default=os.path.join(prepare.REPOSITORY, "build", "peers"))
    ap.add_argument("--out", help="the JSON file to write")
    A = ap.parse_args()
    with open(A.cases, encoding="utf-8") as file:
        cases = sorted(json.load(file), key=lambda case: -len(case["prompt_tokens"]))[:A.prompts]
    load = os.getloadavg()
    peers, about = [Pivot(A.pivot, A.model, A.threads)], []
    about.append(peers[0].about)
    for name in A.peers.split(","):
        try:
            if name == "llama.cpp":
                if not A.llama_cpp:
                    raise RuntimeError("left out: --llama-cpp names no sources")
                model = prepare.gguf_file(A.model, A.scratch, A.llama_cpp, A.gguf_type)
            elif name.startswith("transformers"):
                model = prepare.bf16_folder(A.model, A.scratch)
            else:
                model = A.model
            peer = Peer(name, model, A.threads)
        except (RuntimeError, OSError, ImportError) as error:
            about.append({"peer": name, "error": str(error)[:500]})
            continue
        about.append({"peer": name, **peer.about})
        if "error" in peer.about:
            peer.close()
        else:
            peers.append(peer)
    results = measure(peers, cases, A.steps, A.rounds, A.slow_steps)
    add_ratios(results)
    for peer in peers:
        peer.close()
    report = {"benchmark": "cpu peers", "model": "embedded (models/needle)", "threads": A.threads, "rounds": A.rounds,
              "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "load_average": load, "load_average_end": os.getloadavg()},
              "peers": about, "results": results}
    show(report)
    if A.out:
        with open(A.out, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    agrees = all(row.get("same_answer", True) for row in results if row["peer"] != "plain-pytorch")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
