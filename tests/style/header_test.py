#!/usr/bin/env python3
"""Compiles each header of src/ alone: a header includes what it uses.

header_test.py COMPILER INCLUDE_FOLDER... checks the repository's headers; with --self-test, that a bad one is found.
A header with a .cpp of its name is left to the build: the rule `guards` sees to it that the .cpp includes it first.
Headers of src/ops/cuda need nvcc and are compiled with its kernels.
"""

import concurrent.futures
import os
import subprocess
import sys
import tempfile

from tree import read_repository


def complaint(compiler, folders, header):
    """None where the header compiles as a file of its own, else the compiler's first error."""
    command = [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-include", header, "/dev/null"]
    command += [part for folder in folders for part in ("-I", folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return None
    errors = [line for line in run.stderr.split("\n") if "error:" in line]
    return errors[0] if errors else run.stderr[-500:]


def self_test(compiler):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("good.h", "#pragma once\n#include <vector>\nstd::vector<int> f();\n"),
                           ("bad.h", "#pragma once\nstd::vector<int> f();\n")):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
                stream.write(text)
        good = complaint(compiler, [], os.path.join(folder, "good.h"))
        bad = complaint(compiler, [], os.path.join(folder, "bad.h"))
        print(f"good.h: {good}\nbad.h: {bad}")
        return 0 if good is None and bad is not None and "vector" in bad else 1


def main():
    compiler, folders = sys.argv[1], sys.argv[2:]
    if folders == ["--self-test"]:
        return self_test(compiler)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    tree = read_repository(root)
    # A *_body.h is compiled once per instruction set, after the header that defines its vector type: not alone by design.
    headers = [path for path, _ in tree.texts(".h", under="src/")
               if not path.startswith("src/ops/cuda/") and not path.endswith("_body.h") and path[:-2] + ".cpp" not in tree.files]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        results = pool.map(lambda h: complaint(compiler, folders, os.path.join(root, h)), headers)
        for header, problem in zip(headers, results):
            if problem:
                failed += 1
                print(f"{header} does not compile alone: {problem}")
    print(f"{len(headers)} headers, {failed} that do not compile alone")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
