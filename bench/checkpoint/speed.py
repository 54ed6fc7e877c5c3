#!/usr/bin/env python3
"""Times `pivot convert` and `pivot diff` on a large synthetic checkpoint against what the disk itself gives in the same minutes.

    bench/checkpoint/speed.py --pivot build/release/bin/pivot --folder /big/disk/scratch --json OUT.json

For every target format a native checkpoint is written whose larger side (source or output) has --gigabytes. Then, --repeat
times: convert it there, compare the two, convert it back, compare source and round trip. Before and after each of these
the same bytes are moved by dd past the page cache: reads of the same input files, and for a conversion writes of as many
bytes at the same time. The share is the mean time of these two references over the time of pivot. Everything is deleted
afterwards.

Memory is sampled from /proc: "anonymous" is what the process itself holds, "resident" adds the mapped file pages that the
kernel may take back at any time (the sum is what `ps` calls RSS; the most it ever was).
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time

from synthetic import EXPERT_BYTES, write_checkpoint

LAYERS = 3
# Bytes of an expert in each format over its bytes in the native one.
GROWTH = {"nvfp4": 18 / 17, "fp8": 32 / 17, "bf16": 64 / 17}
PAGE = os.sysconf("SC_PAGE_SIZE")


def files_of(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors"))


def bytes_of(folder):
    return sum(os.path.getsize(path) for path in files_of(folder))


def plain_read(folders):
    for folder in folders:
        for path in files_of(folder):
            subprocess.run(["dd", f"if={path}", "of=/dev/null", "iflag=direct", "bs=16M", "status=none"], check=True)


def plain_write(path, count):
    # One file after the other, so that the reference takes little room.
    blocks = max(1, round(count / (16 << 20)))
    while blocks > 0:
        piece = min(blocks, 128)
        subprocess.run(["dd", "if=/dev/zero", f"of={path}", "oflag=direct", "bs=16M", f"count={piece}", "conv=fsync",
                        "status=none"], check=True)
        os.unlink(path)
        blocks -= piece


def reference(read_folders, write_bytes, scratch):
    """Seconds that dd takes to read these folders and to write as many bytes, both at once."""
    begin = time.monotonic()
    writer = None
    if write_bytes:
        writer = threading.Thread(target=plain_write, args=(os.path.join(scratch, "plain.bin"), write_bytes))
        writer.start()
    plain_read(read_folders)
    if writer:
        writer.join()
    return time.monotonic() - begin


class Run:
    """One run of pivot: seconds, processor seconds, memory, and its JSON."""

    def __init__(self, command):
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.anonymous = self.resident = 0
        finished = threading.Event()
        sampler = threading.Thread(target=self.sample, args=(process.pid, finished))
        sampler.start()
        output = process.stdout.read()
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        finished.set()
        sampler.join()
        self.seconds = time.monotonic() - begin
        self.processor_seconds = usage.ru_utime + usage.ru_stime
        self.code = os.waitstatus_to_exitcode(status)
        process.returncode = self.code
        if self.code not in (0, 1):
            sys.exit(f"{' '.join(command)} ended with {self.code}: {errors.decode()}")
        self.json = json.loads(output)

    def sample(self, pid, finished):
        while not finished.wait(0.05):
            try:
                with open(f"/proc/{pid}/status", encoding="ascii") as file:
                    fields = dict(line.split(":", 1) for line in file)
                self.anonymous = max(self.anonymous, int(fields["RssAnon"].split()[0]) * 1024)
                # Not getrusage's figure: that one remembers the parent's memory from before exec.
                self.resident = max(self.resident, int(fields["VmHWM"].split()[0]) * 1024)
            except (OSError, KeyError):
                return


class Benchmark:
    def __init__(self, options):
        self.options = options
        self.rows = []

    def measure(self, what, command, reads, writes_to=None):
        """One comparison of pivot with dd; `reads` and `writes_to` are folders."""
        write_bytes = self.planned_bytes(command) if writes_to is not None else 0
        read_bytes = sum(bytes_of(folder) for folder in reads)
        before = reference(reads, write_bytes, self.options.folder)
        run = Run(command)
        after = reference(reads, write_bytes, self.options.folder)
        plain = (before + after) / 2
        moved = read_bytes + write_bytes
        row = {
            "what": what, "read_bytes": read_bytes, "written_bytes": write_bytes, "seconds": round(run.seconds, 2),
            "processor_seconds": round(run.processor_seconds, 2), "plain_seconds": [round(before, 2), round(after, 2)],
            "gb_per_second": round(moved / run.seconds / 1e9, 3), "plain_gb_per_second": round(moved / plain / 1e9, 3),
            "share": round(plain / run.seconds, 3), "anonymous_mb": round(run.anonymous / 1e6),
            "resident_mb": round(run.resident / 1e6),
            "load": round(os.getloadavg()[0], 1),
        }
        print(f"{what:28} {row['seconds']:7.1f} s  dd {plain:7.1f} s  share {row['share']:5.2f}  "
              f"{row['gb_per_second']:6.3f} GB/s  cpu {row['processor_seconds']:6.1f} s  "
              f"memory {row['anonymous_mb']}/{row['resident_mb']} MB  load {row['load']}", flush=True)
        self.rows.append(row)
        return run

    @staticmethod
    def planned_bytes(command):
        """Bytes of tensors that a conversion will write."""
        dry = subprocess.run(command + ["--dry-run"], capture_output=True, text=True, check=True)
        return int(re.search(r"\((\d+) bytes", dry.stdout).group(1))

    def compare(self, what, a, b):
        run = self.measure(what, [self.options.pivot, "diff", a, b, "--json"], [a, b])
        if not run.json["same_values"]:
            sys.exit(f"{what}: {run.json['verdict']}")

    def convert(self, what, source, target, experts):
        self.measure(what, [self.options.pivot, "convert", source, target, "--experts", experts, "--no-verify", "--json"],
                     [source], target)

    def direction(self, experts):
        folder = self.options.folder
        source, there, back = (os.path.join(folder, name) for name in ("native", experts, "back"))
        wanted = self.options.gigabytes * 1e9 / GROWTH[experts]
        size = write_checkpoint(source, max(8, round(wanted / LAYERS / EXPERT_BYTES)), LAYERS)
        verdict = subprocess.run([self.options.pivot, "inspect", source, "--json"], capture_output=True, check=False)
        if verdict.returncode != 0:
            sys.exit(f"the synthetic checkpoint does not inspect clean: {verdict.stdout.decode()[:2000]}")
        print(f"native checkpoint of {size / 1e9:.2f} GB", flush=True)
        for _ in range(self.options.repeat):
            self.convert(f"convert native -> {experts}", source, there, experts)
            self.compare(f"diff native, {experts}", source, there)
            shutil.rmtree(back, ignore_errors=True)
            self.convert(f"convert {experts} -> native", there, back, "native")
            self.compare("diff native, native", source, back)
            shutil.rmtree(there)
            shutil.rmtree(back)
        shutil.rmtree(source)


def summary(rows):
    result = []
    for what in dict.fromkeys(row["what"] for row in rows):
        same = [row for row in rows if row["what"] == what]
        shares = sorted(row["share"] for row in same)
        result.append({
            "what": what, "runs": len(same), "share_median": statistics.median(shares), "share_range": [shares[0], shares[-1]],
            "gb_per_second_median": statistics.median(row["gb_per_second"] for row in same),
            "anonymous_mb_most": max(row["anonymous_mb"] for row in same),
            "resident_mb_most": max(row["resident_mb"] for row in same),
        })
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pivot", default="build/release/bin/pivot")
    parser.add_argument("--folder", required=True, help="on the disk to measure; a sub-folder is made and deleted")
    parser.add_argument("--gigabytes", type=float, default=8.7, help="experts of the larger side")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--targets", nargs="+", choices=list(GROWTH), default=list(GROWTH))
    parser.add_argument("--nice", type=int, default=0,
                        help="priority of pivot and dd alike; below 0 (as root) where other work shares the processors")
    parser.add_argument("--json", help="file for the result")
    options = parser.parse_args()
    options.pivot = os.path.abspath(options.pivot)
    options.folder = os.path.join(os.path.abspath(options.folder), f"pivot-speed-{os.getpid()}")
    os.makedirs(options.folder)
    benchmark = Benchmark(options)
    if options.nice:
        os.nice(options.nice)  # inherited by pivot and dd
    version = json.loads(subprocess.run([options.pivot, "--version", "--json"], capture_output=True, check=True).stdout)
    try:
        for experts in options.targets:
            benchmark.direction(experts)
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
        result = {"command": "bench/checkpoint/" + " ".join([os.path.basename(sys.argv[0]), "--gigabytes", str(options.gigabytes),
                                                             "--repeat", str(options.repeat),
                                                             "--nice", str(options.nice)]),
                  "version": version, "cores": os.cpu_count(), "summary": summary(benchmark.rows), "runs": benchmark.rows}
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)
                file.write("\n")
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
