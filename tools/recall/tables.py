#!/usr/bin/env python3
"""Recall and fidelity of one model against its settings: the tables of docs/recall.md.

  tables.py PIVOT MODEL --out FILE.json [--svg FILE.svg] [--variants NAME ...] [--also NAME=MODEL ...] -- OPTIONS OF pivot recall
Runs `pivot recall MODEL OPTIONS --json` once for each variant, on the same cases, and prints a table: answers right with
Wilson's interval, answers that only the variant or only the base has right (McNemar's exact test), and, where --probe is
among the options, the fidelity at the longest prompts.  FILE.json keeps every answer; variants that it holds already are
not run again, so a stopped run goes on.  --also adds another checkpoint on the same cases, such as a conversion.  FILE.svg is a picture of the first two columns.
"""

import argparse
import json
import math
import os
import subprocess
import sys

VARIANTS = {
    "as it is": [],
    "index_topk=4": ["index_topk=4"],
    "index_topk=8": ["index_topk=8"],
    "index_topk=16": ["index_topk=16"],
    "index_topk=32": ["index_topk=32"],
    "index_topk=64": ["index_topk=64"],
    "index_topk=all": ["index_topk=all"],
    "index_keys=fp8": ["index_keys=fp8"],
    "index_keys=bf16": ["index_keys=bf16"],
    "kv=bf16": ["kv=bf16"],
    "index_topk=all kv=bf16": ["index_topk=all", "kv=bf16"],
    "index_topk=16 index_keys=bf16": ["index_topk=16", "index_keys=bf16"],
    "expert_act=bf16": ["expert_act=bf16"],
}


def wilson(right, cases, z=1.959964):
    if cases == 0:
        return 0.0, 1.0
    p, zz = right / cases, z * z / cases
    middle = (p + zz / 2) / (1 + zz)
    half = z / (1 + zz) * math.sqrt(p * (1 - p) / cases + zz / (4 * cases))
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(gained, lost):
    n = gained + lost
    tail = sum(math.comb(n, i) for i in range(min(gained, lost) + 1)) / 2**n
    return min(1.0, 2 * tail)


def run(pivot, model, options, knobs):
    command = [pivot, "recall", model, *options, *[a for k in knobs for a in ("--knob", k)], "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    kept = ("id", "expected", "answer", "exact")
    return {
        "command": " ".join(["pivot", *command[1:]]),
        "device": report["device"],
        "seconds": report["seconds"],
        "cases": [{k: case[k] for k in kept} for case in report["cases"]],
        "fidelity": report["fidelity"],
    }


def table(found):
    base = {case["id"]: case for case in found["as it is"]["cases"]}
    longest = max((f["length"] for r in found.values() for f in r["fidelity"]), default=None)
    layers = sorted({f["layer"] for r in found.values() for f in r["fidelity"]})
    head = ["variant", "right", "recall [95 %]", "only it / only the base", "p", "other answers"]
    for layer in layers:
        head += [f"layer {layer}: overlap", "entry mass", "fact selected"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, result in found.items():
        cases = result["cases"]
        right = sum(case["exact"] for case in cases)
        low, high = wilson(right, len(cases))
        gained = sum(case["exact"] and not base[case["id"]]["exact"] for case in cases)
        lost = sum(base[case["id"]]["exact"] and not case["exact"] for case in cases)
        changed = sum(case["answer"] != base[case["id"]]["answer"] for case in cases)
        row = [name, f"{right}/{len(cases)}", f"{right / len(cases):.2f} [{low:.2f}, {high:.2f}]"]
        row += ["", "", ""] if name == "as it is" else [f"{gained} / {lost}", f"{mcnemar(gained, lost):.2g}", str(changed)]
        for layer in layers:
            f = next((f for f in result["fidelity"] if f["length"] == longest and f["layer"] == layer), None)
            row += [f"{f['overlap']:.3f}", f"{f['entry_mass']:.3f}", f"{f['fact_selected']:.2f}"] if f else ["", "", ""]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def picture(found, title):
    """Recall with its interval, one line a variant, as SVG."""
    left, right, row, top = 230, 640, 26, 56
    x = lambda share: left + share * (right - left)
    height = top + row * len(found) + 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="740" height="{height}" font-family="sans-serif" font-size="13">']
    out.append(f'<rect width="740" height="{height}" fill="#fcfcfa"/><text x="20" y="26" font-size="16" font-weight="bold">{title}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        out.append(f'<line x1="{x(share)}" x2="{x(share)}" y1="{top - 10}" y2="{height - 30}" stroke="#dddddd"/>')
        out.append(f'<text x="{x(share)}" y="{height - 12}" text-anchor="middle" fill="#666666">{share:g}</text>')
    for i, (name, result) in enumerate(found.items()):
        cases, y = result["cases"], top + row * i + 8
        good = sum(case["exact"] for case in cases)
        low, high = wilson(good, len(cases))
        colour = "#1f6f43" if name == "as it is" else "#2b5c8a"
        out.append(f'<text x="{left - 14}" y="{y + 4}" text-anchor="end">{name}</text>')
        out.append(f'<line x1="{x(low)}" x2="{x(high)}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<circle cx="{x(good / len(cases))}" cy="{y}" r="5" fill="{colour}"/>')
        out.append(f'<text x="{right + 14}" y="{y + 4}" fill="#444444">{good} of {len(cases)}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("pivot")
    ap.add_argument("model")
    ap.add_argument("--out", required=True)
    ap.add_argument("--svg")
    ap.add_argument("--variants", nargs="*", default=list(VARIANTS))
    ap.add_argument("--also", nargs="*", default=[], metavar="NAME=MODEL")
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    A = ap.parse_args(own)
    unknown = [name for name in A.variants if name not in VARIANTS]
    if unknown:
        sys.exit(f"there is no variant {unknown}; there are {list(VARIANTS)}")
    found = {}
    if os.path.exists(A.out):
        with open(A.out, encoding="utf-8") as stream:
            found = json.load(stream)
    also = dict(entry.split("=", 1) for entry in A.also)
    for name in ["as it is", *[v for v in A.variants if v != "as it is"], *also]:
        if name not in found:
            found[name] = run(A.pivot, also.get(name, A.model), options, VARIANTS.get(name, []))
            with open(A.out, "w", encoding="utf-8") as stream:
                json.dump(found, stream, indent=1)
        print(f"{name}: {found[name]['seconds']:.0f} s", file=sys.stderr, flush=True)
    print(table(found))
    if A.svg:
        with open(A.svg, "w", encoding="utf-8") as stream:
            stream.write(picture(found, f"Recall of {A.model} by setting, 95 % intervals"))


if __name__ == "__main__":
    main()
