#!/usr/bin/env python3
"""Runs clang-tidy over the sources that a build folder compiles, most recently changed first, within a time limit.

  run_clang_tidy.py --build-dir build/dev [--seconds 300] [--jobs 2] [PATH...]
The order makes a bounded run look at what just changed; the number of files that were left out is printed.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time


def changed_first(root, paths):
    """The paths, those of the latest commits first; what git does not know comes first of all."""
    log = subprocess.run(["git", "-C", root, "log", "--format=", "--name-only", "--", "*.cpp"],
                         capture_output=True, text=True, check=False).stdout
    order = {}
    for name in log.split("\n"):
        order.setdefault(name, len(order))
    return sorted(paths, key=lambda path: order.get(os.path.relpath(path, root), -1))


def check(path, build_dir):
    run = subprocess.run(["clang-tidy", "--quiet", "-p", build_dir, path], capture_output=True, text=True, check=False)
    # Without complaints on standard output the tool itself failed, and says why on standard error.
    return path, run.returncode, run.stdout.strip() or run.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", required=True)
    parser.add_argument("--seconds", type=float, default=0, help="start no further file after this long (0: no limit)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("paths", nargs="*", help="only files below these paths")
    arguments = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(arguments.build_dir, "compile_commands.json"), encoding="utf-8") as stream:
        sources = {os.path.normpath(os.path.join(c["directory"], c["file"])) for c in json.load(stream)}
    sources = [s for s in sources if s.endswith(".cpp") and s.startswith(root + os.sep)]
    if arguments.paths:
        below = tuple(os.path.abspath(p) for p in arguments.paths)
        sources = [s for s in sources if s.startswith(below)]
    if not sources:
        sys.exit(f"{arguments.build_dir} compiles nothing that was asked for")
    deadline = time.monotonic() + arguments.seconds if arguments.seconds > 0 else float("inf")
    checked = failed = 0

    def timed(path):
        return check(path, arguments.build_dir) if time.monotonic() < deadline else None

    with concurrent.futures.ThreadPoolExecutor(max_workers=arguments.jobs) as pool:
        for result in pool.map(timed, changed_first(root, sources)):
            if result is None:
                continue
            checked += 1
            path, status, output = result
            if status != 0:
                failed += 1
                print(f"{os.path.relpath(path, root)}:\n{output}", flush=True)
    print(f"clang-tidy: {checked} of {len(sources)} files checked, {failed} with complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
