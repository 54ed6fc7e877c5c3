#!/usr/bin/env python3
"""`pivot serve` with a disk tier, killed (SIGKILL) at random moments while clients ask: whatever is on the disk then, every
answer of the next process equals the answer of a server without any cache.

Between kills entries are damaged, too. After each start the folder holds no temporary files, exactly the entries that
/metrics counts, and no more bytes than allowed. At the end every entry is damaged at once: all of them are dropped and
counted, none is used.

usage: restart_test.py PIVOT [--kills N] [--seed S]
"""

import argparse
import http.client
import json
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

from server_process import ServerProcess

DISK_BYTES = 24 << 20
ANSWER_TOKENS = 10


def sequence(count, seed):
    rng = random.Random(seed)
    return [rng.randrange(100, 1600) for _ in range(count)]


def prompts():
    """Prompts that share prefixes, so that entries build on each other, of lengths around the blocks of 256."""
    one, two = sequence(700, 1), sequence(540, 2)
    return [one[:300], one[:512], one, one[:520] + sequence(30, 3), two[:257], two]


class Client:
    def __init__(self, url):
        host, port = url.removeprefix("http://").split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=120)

    def answer(self, prompt):
        """The choices, probabilities included, and how many tokens of the prompt were cached."""
        body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": 2}
        self.connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        reply = self.connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise AssertionError(f"status {reply.status}: {text[:300]!r}")
        whole = json.loads(text)
        return whole["choices"], whole["usage"]["prompt_tokens_details"]["cached_tokens"]

    def metric(self, name):
        self.connection.request("GET", "/metrics")
        lines = self.connection.getresponse().read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


class Test:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.rng = random.Random(options.seed)
        self.prompts = prompts()
        self.expected = []
        self.lock = threading.Lock()
        self.faults = []
        self.answers = 0  # that were compared
        self.disk_hits = 0  # prompts that went on from what an earlier process had written
        self.damaged = 0  # entries that this script damaged
        self.leftovers = 0  # temporary files found after a kill

    def server(self, *flags):
        return ServerProcess(self.options.pivot, "--max-model-len", "2048", "--max-num-seqs", "4", "--deterministic", *flags)

    def cached_server(self):
        return self.server("--disk-cache", str(self.folder), "--disk-cache-bytes", str(DISK_BYTES))

    def fault(self, text):
        with self.lock:
            self.faults.append(text)

    def entries(self):
        return sorted(path for path in self.folder.glob("pfx1-*") if ".tmp." not in path.name)

    def temporary_files(self):
        return [path for path in self.folder.glob("*") if ".tmp." in path.name]

    def compare(self, client, index, before):
        choices, cached = client.answer(self.prompts[index])
        with self.lock:
            self.answers += 1
        if choices != self.expected[index]:
            self.fault(f"{before}: prompt {index} with {cached} cached tokens was answered {choices}, not {self.expected[index]}")

    def ask_until_killed(self, url, seed, before, answered):
        rng = random.Random(seed)
        client = Client(url)
        try:
            while True:
                self.compare(client, rng.randrange(len(self.prompts)), before)
                answered.set()
        except (OSError, http.client.HTTPException, ValueError):
            pass  # killed
        except AssertionError as fault:
            self.fault(f"{before}: {fault}")

    def check_folder(self, client, before):
        if left := self.temporary_files():
            self.fault(f"{before}: {len(left)} temporary files after the start: {left[0].name}")
        files = self.entries()
        size = sum(path.stat().st_size for path in files)
        if size > DISK_BYTES:
            self.fault(f"{before}: {size} bytes in {len(files)} entries; {DISK_BYTES} are allowed")
        if (counted := client.metric("pivot_disk_cache_entries")) != len(files):
            self.fault(f"{before}: {len(files)} entries in the folder, {counted:.0f} in /metrics")

    def damage(self, path):
        data = bytearray(path.read_bytes())
        kind = self.rng.randrange(3)
        if kind == 0:
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        elif kind == 1:
            del data[self.rng.randrange(len(data)):]
        else:
            data[len(data) // 2:] = bytes(len(data) - len(data) // 2)
        path.write_bytes(data)
        self.damaged += 1

    def kill_once(self, number):
        before = f"kill {number}"
        with self.cached_server() as server:
            client = Client(server.url)
            self.check_folder(client, before)
            index = self.rng.randrange(len(self.prompts))
            if self.rng.random() < 0.7:
                self.compare(client, index, before)
                self.disk_hits += client.metric("pivot_disk_cache_hits_total")
            answered = threading.Event()
            threads = [threading.Thread(target=self.ask_until_killed, args=(server.url, self.rng.random(), before, answered))
                       for _ in range(3)]
            for thread in threads:
                thread.start()
            if self.rng.random() < 0.6:  # while entries are written: they are when an answer ends
                answered.wait(60)
                time.sleep(self.rng.random() * 0.1)
            else:
                time.sleep(self.rng.random() * 1.5)
            server.stop(signal.SIGKILL)
            for thread in threads:
                thread.join()
        self.leftovers += len(self.temporary_files())
        files = self.entries()
        if files and self.rng.random() < 0.4:
            self.damage(self.rng.choice(files))

    def run(self):
        with self.server("--no-enable-prefix-caching") as server:
            client = Client(server.url)
            for prompt in self.prompts:
                choices, cached = client.answer(prompt)
                assert cached == 0
                self.expected.append(choices)
            server.stop()
        for number in range(self.options.kills):
            self.kill_once(number)
        # A quiet start with what the last kill left, and then one that finds everything damaged.
        with self.cached_server() as server:
            client = Client(server.url)
            self.check_folder(client, "after the kills")
            for index in range(len(self.prompts)):
                self.compare(client, index, "after the kills")
            time.sleep(0.6)  # the engine's figures are at most half a second old
            self.disk_hits += client.metric("pivot_disk_cache_hits_total")
            server.stop()
        for path in self.entries():
            self.damage(path)
        with self.cached_server() as server:
            client = Client(server.url)
            found = len(self.entries())
            for index in range(len(self.prompts)):
                self.compare(client, index, "all damaged")
            time.sleep(0.6)
            dropped, hits = client.metric("pivot_disk_cache_damaged_total"), client.metric("pivot_disk_cache_hits_total")
            if dropped == 0 or dropped > found:
                self.fault(f"all {found} entries were damaged; {dropped:.0f} are counted")
            if hits != 0:
                self.fault(f"all entries were damaged, and {hits:.0f} were used")
            server.stop()
        if self.disk_hits == 0:
            self.fault("no answer went on from what an earlier process had written")
        print(f"{self.options.kills} kills: {self.answers} answers compared, {self.disk_hits:.0f} prompts found on the disk, "
              f"{self.damaged} entries damaged, {self.leftovers} cut-off writes found and removed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pivot")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        test = Test(options, pathlib.Path(folder))
        test.run()
    for fault in test.faults[:20]:
        print("FAULT:", fault)
    return 1 if test.faults else 0


if __name__ == "__main__":
    sys.exit(main())
