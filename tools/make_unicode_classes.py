#!/usr/bin/env python3
"""Writes src/text/tokenizer/unicode_classes_data.cpp: the general category of every code point, as runs.

The Unicode version is the one that the reference (the regular-expression engine inside the `tokenizers` package) uses,
16.0; the tables of the system's PCRE2 or Python are older and split newly assigned characters differently.

    pip install unicodedata2==16.0.0
    tools/make_unicode_classes.py > src/text/tokenizer/unicode_classes_data.cpp
"""
import sys

import unicodedata2

EXPECTED_VERSION = "16.0.0"
# The property White_Space (PropList.txt), which is what \\s means in the patterns.
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
CODES = {"L": 1, "M": 2, "N": 3, "P": 4, "S": 5}
SPACE = 6
PER_LINE = 10


def code_of(code_point: int) -> int:
    if code_point in WHITE_SPACE:
        return SPACE
    return CODES.get(unicodedata2.category(chr(code_point))[0], 0)


def main() -> int:
    if unicodedata2.unidata_version != EXPECTED_VERSION:
        print(f"needs unicodedata2 of Unicode {EXPECTED_VERSION}, found {unicodedata2.unidata_version}", file=sys.stderr)
        return 1
    runs = []
    previous = None
    for code_point in range(0x110000):
        code = code_of(code_point)
        if code != previous:
            runs.append(code_point << 3 | code)
            previous = code
    print("// Written by tools/make_unicode_classes.py from the Unicode Character Database 16.0.0. Do not edit.")
    print("// clang-format off")
    print('#include "text/tokenizer/unicode_classes.h"\n')
    print("namespace pivot::detail {\n")
    print(f"const std::array<std::uint32_t, kUnicodeRunCount> kUnicodeRuns = {{{{")
    for i in range(0, len(runs), PER_LINE):
        print("  " + " ".join(f"0x{run:06x}," for run in runs[i : i + PER_LINE]))
    print("}};\n\n}  // namespace pivot::detail")
    print(f"{len(runs)} runs", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
