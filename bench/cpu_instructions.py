#!/usr/bin/env python3
"""Instructions that the hot operators of the CPU back-end execute, counted by callgrind.

  cpu_instructions.py CPU_OP [--isa avx2] [--json OUT] [--check RECORD] [--only TEXT]

CPU_OP is the program of tests/ops/cpu_op.cpp, built with optimisation. Counts depend on nothing but the program, so a
record (bench/results/cpu-instructions.json) shows a regression on any machine, busy or not. --check compares with
one: exit status 1 where a count is more than 3 % above it or below it, 77 (skipped) without valgrind or where the
record is of another compiler.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import shutil

TOLERANCE = 0.03
SKIPPED = 77


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compiler_of(program):
    """The compiler's own mark in the program."""
    text = subprocess.run(["readelf", "-p", ".comment", program], capture_output=True, text=True).stdout
    marks = re.findall(r"\]\s+(.*\S)", text)
    return marks[0] if marks else "unknown"


def count(program, op, isa):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        run = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--collect-atstart=no",
                              "--toggle-collect=*measured*", program, op, isa], capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{op}: valgrind ended with {run.returncode}: {run.stderr[-500:]}")
        with open(out, encoding="utf-8") as stream:
            for line in stream:
                if line.startswith(("summary:", "totals:")):
                    return int(line.split()[1])
    sys.exit(f"{op}: callgrind wrote no total")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--isa", default="avx2")
    parser.add_argument("--json")
    parser.add_argument("--check")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed (Debian: valgrind)")
        return SKIPPED
    compiler = compiler_of(arguments.program)
    record = {}
    if arguments.check:
        with open(arguments.check, encoding="utf-8") as stream:
            record = json.load(stream)
        if record["compiler"] != compiler:
            print(f"skipped: the record is of {record['compiler']}, the program of {compiler}")
            return SKIPPED
    counts, failed = {}, 0
    for op in output(arguments.program).split():
        if arguments.only not in op:
            continue
        counts[op] = count(arguments.program, op, arguments.isa)
        before = record.get("instructions", {}).get(op)
        note = ""
        if before:
            change = counts[op] / before - 1
            note = f"{change:+8.2%} of the record"
            if abs(change) > TOLERANCE:
                failed += 1
                note += "  <- differs"
        elif arguments.check:
            failed += 1
            note = "not in the record  <- differs"
        print(f"{op:<18} {counts[op]:>12,} {note}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as stream:
            json.dump({"command": f"bench/cpu_instructions.py CPU_OP --isa {arguments.isa}", "compiler": compiler,
                       "isa": arguments.isa, "instructions": counts}, stream, indent=1)
            stream.write("\n")
    if failed:
        print(f"{failed} operators differ from {arguments.check} by more than {TOLERANCE:.0%}; if that is meant, write "
              "a new record with --json")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
