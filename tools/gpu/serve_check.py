#!/usr/bin/env python3
"""The server on a GPU: what answers must be, whatever runs beside them.

    tools/gpu/serve_check.py PIVOT [--device cuda] [--model embedded] [--requests 48]

Starts `pivot serve`, asks every question alone, then all at once, then all at once again (from the prefix cache), and reads
/metrics. Fails where an answer differs from the same question asked alone (greedy and seeded), where the second round takes no
prompt tokens from the cache, or where the requests of /metrics do not add up. Python's standard library only."""

import argparse
import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

FACTS = ["The guard at the north gate is called Mirelle.", "The blue key opens the third cellar.",
         "Parcel 7431 lies under the old clock.", "The ferry leaves from pier nine at dusk."]
TEXT = ("The road wound on between the hills, and the travellers spoke little. " * 40)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def body(i):
    prompt = f"{i}. {FACTS[i % 4]} " + TEXT[: 200 + 97 * (i % 13)]
    sampled = {"temperature": 0.8, "top_p": 0.9, "seed": i} if i % 3 == 0 else {"temperature": 0}
    return {"prompt": prompt, "max_tokens": 24, **sampled}


def wait_ready(port, server):
    for _ in range(600):
        if server.poll() is not None:
            raise SystemExit(f"pivot serve ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("pivot serve is not ready after two minutes")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("pivot")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--model", default="embedded")
    ap.add_argument("--requests", type=int, default=48)
    A = ap.parse_args()
    port = free_port()
    log = tempfile.TemporaryFile()
    server = subprocess.Popen([A.pivot, "serve", A.model, "--device", A.device, "--port", str(port)], stdout=log, stderr=log)
    problems = []
    try:
        wait_ready(port, server)
        bodies = [body(i) for i in range(A.requests)]
        start = time.time()
        alone = [ask(port, b) for b in bodies]
        alone_seconds = time.time() - start
        rounds = []
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            for _ in range(2):
                start = time.time()
                rounds.append((list(pool.map(lambda b: ask(port, b), bodies)), time.time() - start))
        for number, (answers, _) in enumerate(rounds, 1):
            for i, answer in enumerate(answers):
                if answer["choices"][0]["text"] != alone[i]["choices"][0]["text"]:
                    problems.append(f"round {number}, question {i}: {answer['choices'][0]['text']!r} instead of "
                                    f"{alone[i]['choices'][0]['text']!r}")
        cached = sum(a["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0) for a in rounds[1][0])
        prompt = sum(a["usage"]["prompt_tokens"] for a in rounds[1][0])
        if cached == 0:
            problems.append("no prompt token came from the prefix cache")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        counted = sum(float(v) for v in re.findall(r"^pivot_requests_total\{[^}]*\} (\S+)", metrics, re.M))
        if counted < 3 * A.requests:
            problems.append(f"/metrics counts {counted:.0f} requests, {3 * A.requests} were answered")
        print(json.dumps({"requests": 3 * A.requests, "alone_seconds": round(alone_seconds, 2),
                          "together_seconds": round(rounds[0][1], 2), "cached_seconds": round(rounds[1][1], 2),
                          "cached_share_of_prompts": round(cached / prompt, 3), "different_answers": len(problems)}))
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            code = server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            code = "no end within 30 s"
    if code != 0:
        problems.append(f"after SIGTERM: {code}")
    if problems:
        log.seek(0)
        print("\n".join(problems[:10]), file=sys.stderr)
        print(log.read()[-2000:].decode(errors="replace"), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
