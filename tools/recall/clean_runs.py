#!/usr/bin/env python3
"""Attribution of an undisturbed engine, many times: no part and no setting may be accused.

  clean_runs.py PIVOT --out FILE.json [--runs 20] [--first-seed 100]
Runs `pivot recall embedded --attribute` with a seed of its own each time; FILE.json keeps every verdict.  Exit code 1 where
a run was not clean.  Runs that FILE.json holds already are not made again.
"""

import argparse
import json
import os
import subprocess
import sys

OPTIONS = ["--tasks", "multikey", "--lengths", "320", "--depths", "0.1,0.3", "--residues", "0,3"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("pivot")
    ap.add_argument("--out", required=True)
    ap.add_argument("--runs", type=int, default=20)
    ap.add_argument("--first-seed", type=int, default=100)
    A = ap.parse_args()
    found = {}
    if os.path.exists(A.out):
        with open(A.out, encoding="utf-8") as stream:
            found = json.load(stream)
    for seed in range(A.first_seed, A.first_seed + A.runs):
        if str(seed) in found:
            continue
        command = ["recall", "embedded", "--attribute", *OPTIONS, "--seed", str(seed), "--json"]
        done = subprocess.run([A.pivot, *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr.strip())
        report = json.loads(done.stdout)
        found[str(seed)] = {
            "command": " ".join(["pivot", *command]),
            "cases": report["cases"],
            "right": report["right"],
            "restored_right": report["restored_right"],
            "comparisons": sum(part["compared"] for part in report["parts"]),
            "kind": report["verdict"]["kind"],
            "sentence": report["verdict"]["sentence"],
        }
        with open(A.out, "w", encoding="utf-8") as stream:
            json.dump(found, stream, indent=1)
        print(seed, found[str(seed)]["kind"], f"{report['right']}/{report['cases']}", flush=True)
    accused = [seed for seed, run in found.items() if run["kind"] not in ("clean", "model")]
    print(f"{len(found)} runs, accused in {len(accused)}")
    sys.exit(1 if accused else 0)


if __name__ == "__main__":
    main()
