#!/usr/bin/env python3
"""Shows that each rule of rules.py fails on a tree that breaks it, and passes on one that does not."""

import unittest

import rules
from tree import Tree

DESIGN = """
| layer | folder | purpose |
|---|---|---|
| 0 | `src/base/` | x |
| 1 | `src/numeric/` | x |
| 1 | `src/tensor/` | x |
| 3 | `src/ops/` | x |
| 4 | `src/ops/cpu/`, `src/ops/cuda/` | x |
| 8 | `apps/pivot/` | x |
"""
HEADER = "// What it is.\n#pragma once\n"


def complaints(rule, files):
    return rule(Tree({"docs/design.md": DESIGN, **files}))


class Rules(unittest.TestCase):
    def breaks(self, rule, files, expected):
        found = complaints(rule, files)
        self.assertTrue(any(expected in problem for problem in found), f"{rule.__name__} did not notice: {expected}; it said {found}")

    def passes(self, rule, files):
        self.assertEqual(complaints(rule, files), [])

    def test_every_rule_has_a_test(self):
        tested = {name[len("test_"):] for name in dir(self) if name.startswith("test_")}
        self.assertLessEqual(set(rules.RULES), tested)

    def test_layers(self):
        self.passes(rules.layers, {"src/ops/cpu/a.cpp": '#include "ops/ops.h"\n#include "base/error.h"\n#include <vector>\n',
                                   "src/tensor/a.h": '#include "numeric/formats.h"\n', "apps/pivot/main.cpp": '#include "ops/ops.h"\n'})
        self.breaks(rules.layers, {"src/base/a.h": '#include "tensor/view.h"\n'}, "src/base/a.h:1: src/base (layer 0) includes tensor/view.h")
        self.breaks(rules.layers, {"src/ops/a.cpp": '\n  #  include "ops/cpu/gemm.h"\n'}, "src/ops/a.cpp:2: src/ops (layer 3) includes ops/cpu/gemm.h")
        self.breaks(rules.layers, {"src/tensor/a.h": '#include "numeric/b.h"\n', "src/numeric/b.h": '#include "tensor/a.h"\n'}, "include each other")
        self.breaks(rules.layers, {"src/base/a.h": '#include "../tensor/view.h"\n'}, "not relatively")
        self.breaks(rules.layers, {"src/misc/a.h": "\n"}, "not in the table of layers")
        self.assertTrue(rules.layers(Tree({"docs/design.md": "no table"})))

    def test_length(self):
        self.passes(rules.length, {"src/base/a.cpp": "\n" * rules.MAX_LINES})
        self.breaks(rules.length, {"src/base/a.cpp": "\n" * (rules.MAX_LINES + 1)}, "601 lines")

    def test_names(self):
        self.passes(rules.names, {"src/ops/cuda/indexer_logits_sm90_fp8.cu": "", "tests/style/self_test.py": ""})
        for bad in ("src/ops/gemm_v2.cpp", "src/ops/gemm_old.h", "src/ops/gemm_v3_fp8.cu"):
            self.breaks(rules.names, {bad: ""}, "not which attempt")
        self.breaks(rules.names, {"src/ops/Gemm.cpp": ""}, "snake_case")

    def test_text_form(self):
        self.passes(rules.text_form, {"src/a.cpp": "int a;\n", "tests/fuzz/corpus/x/1.json": "<<<<<<< HEAD"})
        self.breaks(rules.text_form, {"src/a.cpp": "int a; \n"}, "blanks at the end")
        self.breaks(rules.text_form, {"src/a.cpp": "\tint a;\n"}, "a tab")
        self.breaks(rules.text_form, {"src/a.cpp": "int a;"}, "no newline")
        self.breaks(rules.text_form, {"src/a.cpp": "int a;\r\n"}, "LF")
        self.breaks(rules.text_form, {"deploy/board.json": "{\n" + "<" * 7 + " HEAD\n}"}, "deploy/board.json:2: a merge conflict")

    def test_words(self):
        self.passes(rules.words, {"README.md": "see /usr/local/cuda, /path/work/here and ~/.cache\n", "src/a.cpp": "// TO" "DO(#12): later\n"})
        self.breaks(rules.words, {"README.md": "run /wo" "rk/main/dev\n"}, "path of one machine")
        self.breaks(rules.words, {"tools/a.py": "x = '/ho" "me/me'\n"}, "path of one machine")
        self.breaks(rules.words, {"README.md": "from py" "pi.org\n"}, "package registry")
        self.breaks(rules.words, {"src/a.cpp": "// TO" "DO: later\n"}, "without an issue number")

    def test_backends(self):
        self.passes(rules.backends, {"src/ops/cuda/a.cu": "#ifdef __CUDA_ARCH__\n", "src/ops/a.cpp": "#ifdef NDEBUG\n"})
        self.breaks(rules.backends, {"src/model/a.cpp": "#ifdef PIVOT_CUDA\n"}, "PIVOT_CUDA")
        self.breaks(rules.backends, {"src/model/a.h": "# if defined(USE_CUDA) && 1\n"}, "USE_CUDA")

    def test_guards(self):
        self.passes(rules.guards, {"src/base/a.h": HEADER, "src/base/a.cpp": '// Why.\n#include "base/a.h"\n\n#include <vector>\n'})
        self.breaks(rules.guards, {"src/base/a.h": "#include <vector>\n#pragma once\n"}, "starts with #pragma once")
        self.breaks(rules.guards, {"src/base/a.h": HEADER, "src/base/a.cpp": '#include <vector>\n#include "base/a.h"\n'}, "include base/a.h first")
        self.breaks(rules.guards, {"src/base/a.h": HEADER, "src/base/a.cpp": "int a;\n"}, "include base/a.h first")

    def test_cmake_lists(self):
        good = {"CMakeLists.txt": "add_subdirectory(src)\n", "src/CMakeLists.txt": "add_subdirectory(base)\n",
                "src/base/CMakeLists.txt": "pivot_library(base SOURCES a.cpp report/b.cpp)\n", "src/base/a.cpp": "", "src/base/report/b.cpp": ""}
        self.passes(rules.cmake_lists, good)
        self.breaks(rules.cmake_lists, {**good, "src/base/dead.cpp": ""}, "src/base/dead.cpp:1: no CMakeLists.txt names it")
        self.breaks(rules.cmake_lists, {**good, "src/base/report/a.cpp": ""}, "src/base/report/a.cpp:1: no CMakeLists.txt names it")
        self.breaks(rules.cmake_lists, {**good, "src/ops/CMakeLists.txt": ""}, "no add_subdirectory(ops)")

    def test_assets(self):
        self.passes(rules.assets, {"a.json": '{"a": 1}', "b.toml": 'a = "b"\n', "c.jsonl": '{}\n{"a": 2}\n', "tests/fuzz/corpus/x/a.json": "{"})
        self.breaks(rules.assets, {"a.json": '{"a": 1,}'}, "a.json:1: does not parse")
        self.breaks(rules.assets, {"b.toml": "a = \n"}, "b.toml:1: does not parse")
        self.breaks(rules.assets, {"c.jsonl": "{}\n{\n"}, "c.jsonl:1: does not parse")
        self.breaks(rules.assets, {"d.yaml": "a: [1\n"}, "d.yaml:1:")

    def test_documents(self):
        spec = {"docs/specification.md": "## 2. Forward\n### 2.4 Attention\n1. x\n## 10. Checks\n1. Headers\n2. Shapes\n"}
        self.passes(rules.documents, {**spec, "README.md": "[d](docs/design.md#x) [f](docs) [u](https://example.com/)\n", "src/a.h": "// specification 2.4, specification 2\n// specification 10.2\n"})
        self.breaks(rules.documents, {"docs/a.md": "[d](missing.md)\n"}, "leads nowhere")
        self.breaks(rules.documents, {**spec, "src/a.h": "// see specification 2.9\n"}, "has no section 2.9")
        self.breaks(rules.documents, {**spec, "src/a.h": "// see specification 10.3\n"}, "has no section 10.3")

    def test_options(self):
        program = {"apps/pivot/a.cpp": 'app.add_flag("-x,--exact", exact);\n'}
        self.passes(rules.options, {**program, "docs/a.md": "`pivot a --exact`, `cmake --fresh`, `--exact`\n", "src/a.cpp": 'f("try --exact");\n'})
        self.breaks(rules.options, {**program, "docs/a.md": "`pivot a --fast`\n"}, "option --fast")
        self.breaks(rules.options, {**program, "docs/a.md": "    pivot a --fast\n"}, "option --fast")
        self.breaks(rules.options, {**program, "src/a.cpp": 'f("try --fast");\n'}, "option --fast")


if __name__ == "__main__":
    unittest.main()
