#!/usr/bin/env python3
"""Draws the JSON of `pivot bench kernels --device cpu` as bars: bench/plot_cpu_kernels.py KERNELS.json OUT.svg

One bar an operator and number of tokens: the share of what bounds it, memory (blue) or the instruction named (orange)."""
import json
import sys
from xml.sax.saxutils import escape

WIDTH, ROW, LEFT, RIGHT, TOP = 860, 22, 230, 210, 84
COLORS = {"memory": "#2a6f97", "compute": "#c8742b"}


def texts(x, y, text, **attributes):
    more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'


def main(source, target):
    with open(source, encoding="utf-8") as file:
        report = json.load(file)
    rows, floors, machine = report["results"], report["floors"], report["machine"]
    height = TOP + ROW * len(rows) + 40
    scale = (WIDTH - LEFT - RIGHT) / 1.0
    peaks = ", ".join(f"{peak['instruction']} {peak['flops_per_second'] * 1e-9:.0f} Gop/s" for peak in floors["peaks"])
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        texts(16, 26, f"Operators on {machine['cpu']}, {machine['isa']}, {machine['threads']} threads", font_size=16,
              font_weight="bold"),
        texts(16, 46, f"share of the bound; reading {floors['read_bytes_per_second'] * 1e-9:.1f} GB/s, {peaks}, measured in the "
              "same run", fill="#555555"),
    ]
    for i, (bound, label) in enumerate((("memory", "bound by reading weights or rows"), ("compute", "bound by its instruction"))):
        lines += [f'<rect x="{16 + 230 * i}" y="58" width="12" height="12" fill="{COLORS[bound]}"/>',
                  texts(34 + 230 * i, 69, label, fill="#555555")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = LEFT + share * scale
        lines += [f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - 30}" stroke="#dddddd"/>',
                  texts(x, height - 14, f"{100 * share:.0f} %", text_anchor="middle", fill="#555555")]
    for i, row in enumerate(rows):
        y = TOP + ROW * i
        share = min(row["share_of_bound"], 1.0)
        name = f"{row['operator']}, {row['tokens']} {'of a prompt' if row['prompt'] else 'token' + 's' * (row['tokens'] > 1)}"
        rate = (f"{row['bytes_per_second'] * 1e-9:.1f} GB/s" if row["bound"] == "memory"
                else f"{row['flops_per_second'] * 1e-9:.0f} Gop/s")
        lines += [
            texts(LEFT - 8, y + 15, name, text_anchor="end"),
            f'<rect x="{LEFT}" y="{y + 3}" width="{share * scale:.1f}" height="{ROW - 7}" fill="{COLORS[row["bound"]]}"/>',
            texts(LEFT + share * scale + 6, y + 15, f"{100 * row['share_of_bound']:.0f} %, {rate}"),
        ]
    lines.append("</svg>\n")
    with open(target, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
