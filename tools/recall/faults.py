#!/usr/bin/env python3
"""Every injected fault through `pivot recall --attribute`: the verdict must name its part.

  faults.py PIVOT --model embedded|tally --out FILE.json [--faults NAME ...]
FILE.json keeps every verdict with its command; a fault that it holds already is not run again.  Exit code 1 where a verdict names
another part, or none.
"""

import argparse
import json
import os
import subprocess
import sys

# The part that a verdict has to name (src/recall/component.cpp).
PARTS = {
    "dropped-candidates": "choice of selected entries",
    "unrotated-keys": "Hadamard rotation of index keys",
    "aliased-key-scales": "scales of index keys",
    "misread-key-layout": "byte layout of index keys",
    "small-topk": "number of selected entries",
    "window-lost-on-restore": "window rows after a restore",
    "compressor-lost-on-restore": "compressor state after a restore",
    "compressor-lost-between-steps": "compressor state between steps",
    "wrong-theta": "rotary embedding",
    "misread-kv-scales": "scales of compressed KV rows",
    "zeroed-experts": "routed experts",
}
OPTIONS = {
    "embedded": "--tasks multikey --lengths 480 --depths 0.1,0.3 --residues 0,3 --samples 2 --seed 3",
    "tally": "--tasks tally --lengths 1024 --depths 0.5 --samples 5",
}
# Only where steps are short does a state that each of them loses matter; it then costs three answers of four, which takes more
# cases to be certain of.
INSTEAD = {("embedded", "compressor-lost-between-steps"): OPTIONS["embedded"].replace("--samples 2", "--samples 4 --chunk 6")}


def run(pivot, model, fault):
    options = INSTEAD.get((model, fault), OPTIONS[model])
    command = ["recall", model, "--attribute", "--inject", fault, *options.split(), "--json"]
    done = subprocess.run([pivot, *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"pivot {' '.join(command)}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    kept = ("kind", "component", "points_lost", "low", "high", "p", "sentence")
    return {
        "command": " ".join(["pivot", *command]),
        "cases": report["cases"],
        "right": report["right"],
        "restored_right": report["restored_right"],
        **{k: report["verdict"][k] for k in kept},
    }


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("pivot")
    ap.add_argument("--model", choices=list(OPTIONS), required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--faults", nargs="*", default=list(PARTS), choices=list(PARTS), metavar="NAME")
    A = ap.parse_args()
    found = {}
    if os.path.exists(A.out):
        with open(A.out, encoding="utf-8") as stream:
            found = json.load(stream)
    for fault in A.faults:
        if fault not in found:
            found[fault] = run(A.pivot, A.model, fault)
            with open(A.out, "w", encoding="utf-8") as stream:
                json.dump(found, stream, indent=1)
        print(f"{fault}: {found[fault]['sentence']}", flush=True)
    lost = [fault for fault, verdict in found.items() if verdict["component"] != PARTS[fault]]
    print(f"{len(found)} faults, {len(lost)} laid at another part or none {lost or ''}")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
