#!/usr/bin/env python3
"""Checks the repository's files against the style rules of rules.py: check.py all | RULE..."""

import os
import sys

from rules import RULES
from tree import read_repository


def main():
    wanted = list(RULES) if sys.argv[1:] in ([], ["all"]) else sys.argv[1:]
    unknown = [name for name in wanted if name not in RULES]
    if unknown:
        sys.exit(f"no rule {', '.join(unknown)}; there are {', '.join(RULES)}")
    tree = read_repository(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    if len(tree.files) < 50:
        sys.exit(f"only {len(tree.files)} files were found under {tree.root}: this cannot be the repository")
    problems = 0
    for name in wanted:
        found = RULES[name](tree)
        problems += len(found)
        print(f"{name}: {'ok' if not found else f'{len(found)} problem(s)'} ({RULES[name].__doc__})")
        for problem in found:
            print("  " + problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
