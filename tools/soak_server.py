#!/usr/bin/env python3
"""Soak test of `pivot serve`: thousands of mixed requests, then the books are checked.

Requests of all APIs and lengths, streams that are abandoned, refusals, malformed bodies, several choices. At the end:
nothing in flight; received = finished + aborted + failed + refused, in all and as this script counted; every pool back
to its start; the memory of the process flat after the first part.

usage: soak_server.py PIVOT [--requests N] [--seconds S] [--clients C] [--seed S] [--memory]
"""

import argparse
import collections
import http.client
import json
import pathlib
import random
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "server"))
from server_process import ServerProcess  # noqa: E402

SAMPLES = 200  # of the memory, over the longest time that the run may take
POOL_BYTES = 16 << 20  # an anonymous mapping that is written to this far is a pool of states or activations, not malloc's
WARM_UP = 0.5  # of the requests; see memory_report()


class Soak:
    def __init__(self, server, options):
        self.server = server
        self.options = options
        self.host, port = server.url.removeprefix("http://").split(":")
        self.port = int(port)
        self.deadline = time.monotonic() + options.seconds
        self.lock = threading.Lock()
        self.next = 0
        self.outcomes = collections.Counter()
        self.faults = []

    # ---- one request ----

    def prompt(self, rng):
        words = rng.choice([1, 2, 3, 5, 8, 13, 20, 40] * 4 + [60, 125, 130, 250])
        shared = rng.random() < 0.4  # so that the prefix cache has something to find
        source = random.Random(rng.randrange(4)) if shared else rng
        return " ".join(source.choice(["hill", "house", "river", "king", "code", "seven", "Bethel", "city"]) for _ in range(words))

    def body(self, rng):
        text = self.prompt(rng)
        body = {"model": "embedded", "max_tokens": rng.choice([1, 1, 2, 2, 3, 5, 8, 31]), "seed": rng.randrange(1 << 30),
                "temperature": rng.choice([0, 0, 0.7, 1.5]), "stream": rng.random() < 0.6}
        path = rng.choice(["/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
        if path == "/v1/completions":
            body["prompt"] = text
        elif path == "/v1/responses":
            body["input"] = text
            body["max_output_tokens"] = body.pop("max_tokens")
        else:
            body["messages"] = [{"role": "user", "content": text}]
        if rng.random() < 0.1 and path != "/v1/responses" and path != "/v1/messages":
            body["n"] = 2
        if rng.random() < 0.1:
            body["stop_sequences" if path == "/v1/messages" else "stop"] = ["the", "\n\n"]
        if rng.random() < 0.1:
            body["ignore_eos"] = True
        return path, body

    def request(self, index, connection):
        rng = random.Random(self.options.seed * 1_000_003 + index)
        path, body = self.body(rng)
        kind = rng.choices(["plain", "abort", "malformed", "overlong", "unknown_model", "broken_head"], [80, 8, 5, 4, 2, 1])[0]
        if kind == "abort":
            return self.abandon(path, body)
        if kind == "broken_head":
            with socket.create_connection((self.host, self.port), timeout=60) as raw:
                raw.sendall(b"GET /\r\n\x00\xff nonsense\r\n\r\n")
                raw.recv(4096)
            return "broken_head"
        data = json.dumps(body)
        if kind == "malformed":
            data = rng.choice([data[: len(data) // 2], "[" * 1000, '{"messages": NaN}', '{"prompt": "\\ud800"}', "{}", ""])
        elif kind == "overlong":
            body.update({"max_output_tokens" if path == "/v1/responses" else "max_tokens": 1_000_000})
            data = json.dumps(body)
        elif kind == "unknown_model":
            data = json.dumps({**body, "model": "other"})
        connection.request("POST", path, data, {"content-type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        wanted = {"plain": 200, "malformed": 400, "overlong": 400, "unknown_model": 404}[kind]
        if reply.status != wanted:
            raise AssertionError(f"{kind} {path}: status {reply.status}, {text[:300]!r}")
        if kind == "plain" and body["stream"]:
            end = b"message_stop" if path == "/v1/messages" else b"response." if path == "/v1/responses" else b"[DONE]"
            if end not in text:
                raise AssertionError(f"{path}: the stream has no end: {text[-300:]!r}")
        if kind != "plain" and len(text) >= 4096:
            raise AssertionError(f"{kind} {path}: an error of {len(text)} bytes")
        return kind

    def abandon(self, path, body):
        body.update({"stream": True, "ignore_eos": True})
        body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 3000
        data = json.dumps(body).encode()
        with socket.create_connection((self.host, self.port), timeout=60) as raw:
            raw.sendall(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
            raw.recv(64)
        return "abort"

    # ---- many ----

    def work(self, limit):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=300)
        while time.monotonic() < self.deadline:
            with self.lock:
                index = self.next
                if index >= limit:
                    break
                self.next += 1
            try:
                outcome = self.request(index, connection)
            except (AssertionError, OSError, http.client.HTTPException) as fault:
                outcome = "fault"
                with self.lock:
                    self.faults.append(f"request {index}: {type(fault).__name__}: {fault}")
                connection.close()
            with self.lock:
                self.outcomes[outcome] += 1
        connection.close()

    def run(self):
        """All requests; returns [(requests done, resident bytes, of these in pools)] as it went."""
        threads = [threading.Thread(target=self.work, args=(self.options.requests,)) for _ in range(self.options.clients)]
        for thread in threads:
            thread.start()
        samples = []
        began = reported = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(1.0, self.options.seconds / SAMPLES))
            samples.append((sum(self.outcomes.values()), *self.memory()))
            if time.monotonic() - reported > self.options.seconds / 10:
                reported = time.monotonic()
                print(f"{samples[-1][0]:6d} requests, {reported - began:6.1f} s, {samples[-1][1] / 2**20:.1f} MiB resident", flush=True)
        return samples

    # ---- the books ----

    def get(self, path):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def figures(self):
        figures = {}
        for line in self.get("/metrics").splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                figures[name] = float(value)
        return figures

    def idle_figures(self):
        for _ in range(600):
            figures = self.figures()
            if figures["pivot_requests_in_flight"] == 0 and figures["pivot_sequences_running"] == 0:
                time.sleep(0.6)  # the engine's own figures are at most half a second old
                return self.figures()
            time.sleep(0.05)
        raise AssertionError("the server does not become idle")

    def memory(self):
        """Resident bytes, and how many of them are pools: allocated once at the start, and resident once written to."""
        resident = pools = 0
        anonymous = False
        with open(f"/proc/{self.server.pid}/smaps") as smaps:
            for line in smaps:
                words = line.split()
                if not words[0].endswith(":"):  # a mapping: range, rights, offset, device, inode[, name]
                    low, high = (int(end, 16) for end in words[0].split("-"))
                    anonymous = len(words) == 5 and high - low >= POOL_BYTES
                elif words[0] == "Rss:":
                    resident += int(words[1]) * 1024
                    pools += int(words[1]) * 1024 if anonymous else 0
        return resident, pools


def memory_report(samples):
    """Prints how the memory went; returns its growth after the warm-up.

    Three things fill once and are then reused: the pools of states (the kernel gives a page when it is first written
    to), the caches up to their limits, and malloc's arenas, one for each thread that allocates. The prompts of a soak
    are of random lengths, so the last new maximum of each comes late; what grows without end grows in the second half
    as in the first.
    """
    done = samples[-1][0]
    print("requests   resident MiB   pools   everything else")
    for tenth in range(11):
        count, resident, pools = next(s for s in samples if s[0] >= done * tenth / 10)
        print(f"{count:8d} {resident / 2**20:14.1f} {pools / 2**20:7.1f} {(resident - pools) / 2**20:17.1f}")
    # Medians of a few samples: one in the middle of a large request says little.
    few = max(5, len(samples) // 20)
    warm = sorted(resident for count, resident, _ in [s for s in samples if s[0] >= done * WARM_UP][:few])
    end = sorted(resident for _, resident, _ in samples[-few:])
    before, after = warm[len(warm) // 2], end[len(end) // 2]
    print(f"memory: {before / 2**20:.1f} MiB half-way, {after / 2**20:.1f} MiB at the end ({after / before - 1:+.2%})")
    return after / before - 1


def series(figures, name, *labels):
    return {key: value for key, value in figures.items()
            if (key == name or key.startswith(name + "{")) and all(label in key for label in labels)}


def check_books(soak, start):
    faults = []
    end = soak.idle_figures()

    def total(name, *labels):
        return sum(series(end, name, *labels).values())

    received, ended = total("pivot_requests_received_total"), total("pivot_requests_total")
    if received != ended:
        faults.append(f"{received:.0f} requests received, {ended:.0f} ended")
    counted = {"finished": soak.outcomes["plain"], "aborted": soak.outcomes["abort"],
               "refused": soak.outcomes["malformed"] + soak.outcomes["overlong"] + soak.outcomes["unknown_model"], "failed": 0}
    if not soak.outcomes["fault"]:
        for outcome, wanted in counted.items():
            found = total("pivot_requests_total", f'outcome="{outcome}"')
            if found != wanted:
                faults.append(f"{wanted} requests {outcome} here, {found:.0f} in /metrics")
    for key, value in series(end, "pivot_cache_pages", 'state="used"').items():
        if value != 0:
            faults.append(f"{key} is {value:.0f} although nothing runs")
    soak.get("/flush_cache")
    time.sleep(1.2)
    flushed = soak.figures()
    for key, value in series(flushed, "pivot_cache_pages", 'state="free"').items():
        if value != start[key]:
            faults.append(f"{key} is {value:.0f} after the cache was flushed, was {start[key]:.0f} at the start")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pivot")
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=3600, help="stop early, with a complete check, after this time")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", action="store_true", help="also fail where memory is not flat within 1 %%")
    options = parser.parse_args()
    # Small pools and caches, so that they are full soon and everything that is thrown away is thrown away often.
    with ServerProcess(options.pivot, "--max-model-len", "4096", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "96mb",
                       "--prefix-cache-bytes", "16mb", "--replay-bytes", "1mb") as server:
        soak = Soak(server, options)
        start = soak.idle_figures()
        began = time.monotonic()
        samples = soak.run()
        seconds = time.monotonic() - began
        faults = soak.faults[:20] + check_books(soak, start)
        print(f"{samples[-1][0]} requests in {seconds:.0f} s: {dict(soak.outcomes)}")
        growth = memory_report(samples)
        if options.memory and abs(growth) > 0.01:
            faults.append(f"memory changed by {growth:+.2%} in the second half")
        status = server.stop()
        if status != 0:
            faults.append(f"the server ended with status {status}")
    for fault in faults:
        print("FAULT:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
