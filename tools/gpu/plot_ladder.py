#!/usr/bin/env python3
"""Draws the JSON of `pivot bench ladder` as a bar chart: tools/gpu/plot_ladder.py LADDER.json OUT.svg"""
import json
import sys
from xml.sax.saxutils import escape

WIDTH, ROW, LEFT, RIGHT, TOP = 760, 34, 150, 150, 64


def main(source, target):
    with open(source, encoding="utf-8") as file:
        ladder = json.load(file)
    rungs = ladder["results"]
    most = max(rung["tokens_per_second"] for rung in rungs)
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + ROW * len(rungs) + 24
    title = f"Decode, context {rungs[0]['context']:,}, batch {rungs[0]['batch']}: {ladder['device']}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
        f'<text x="16" y="46" fill="#555555">tokens/s, and the share of what reading the weights once allows '
        f"({ladder['read_bytes_per_second'] * 1e-12:.2f} TB/s measured)</text>",
    ]
    for i, rung in enumerate(rungs):
        y = TOP + ROW * i
        length = rung["tokens_per_second"] * scale
        lines += [
            f'<text x="{LEFT - 10}" y="{y + 20}" text-anchor="end">{escape(rung["rung"])}</text>',
            f'<rect x="{LEFT}" y="{y + 5}" width="{length:.1f}" height="{ROW - 12}" fill="#2a6f97"/>',
            f'<text x="{LEFT + length + 8:.1f}" y="{y + 20}">{rung["tokens_per_second"]:.1f} '
            f'({100 * rung["share_of_roofline"]:.1f} %)</text>',
        ]
    lines.append("</svg>\n")
    with open(target, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
