"""The style rules. Each takes a Tree and returns its complaints as "path:line: sentence"; an empty list is a pass.

docs/design.md sections 2 and 3 state the rules; self_test.py feeds each one a tree that breaks it.
"""

import json
import os
import re

MAX_LINES = 600
CODE = (".h", ".cpp", ".cu", ".cuh")
SCRIPTS = (".py", ".sh", ".cmake", "CMakeLists.txt")
# Inputs that are malformed on purpose, and the fuzzers' corpora.
MALFORMED = re.compile(r"(^|/)(corpus|malformed|bad)/")


def lines_matching(text, pattern):
    for number, line in enumerate(text.split("\n"), 1):
        match = pattern.search(line)
        if match:
            yield number, match


# --- layers -----------------------------------------------------------------------------------------------------------

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def layer_table(design):
    """Folder -> layer number, from the table of docs/design.md section 2."""
    layers = {}
    for line in design.split("\n"):
        row = re.match(r"\|\s*(\d+)\s*\|([^|]+)\|", line)
        if row:
            for folder in re.findall(r"`([a-z_/]+)/`", row.group(2)):
                layers[folder] = int(row.group(1))
    return layers


def folder_of(path, layers):
    """The deepest folder of the table that holds the path."""
    parts = path.split("/")
    for length in range(len(parts) - 1, 0, -1):
        folder = "/".join(parts[:length])
        if folder in layers:
            return folder
    return None


def layers(tree):
    """A folder includes only from lower layers; of two folders of one layer, at most one includes the other."""
    table = layer_table(tree.files.get("docs/design.md") or "")
    if not table:
        return ["docs/design.md:1: the table of layers (section 2) was not found"]
    problems, sideways = [], {}
    for path, text in list(tree.texts(*CODE, under="src/")) + list(tree.texts(*CODE, under="apps/")):
        own = folder_of(path, table)
        if own is None:
            problems.append(f"{path}:1: its folder is not in the table of layers of docs/design.md section 2")
            continue
        for number, match in lines_matching(text, INCLUDE):
            name = match.group(1)
            if name.startswith("../") or "/../" in name:
                problems.append(f"{path}:{number}: include '{name}' by its path from src/, not relatively")
                continue
            other = folder_of("src/" + name, table)
            if other is None or other == own:
                continue
            if table[other] > table[own]:
                problems.append(f"{path}:{number}: {own} (layer {table[own]}) includes {name}, of layer {table[other]}")
            elif table[other] == table[own]:
                sideways.setdefault((own, other), f"{path}:{number}")
    for (own, other), where in sorted(sideways.items()):
        if (other, own) in sideways:
            problems.append(f"{where}: {own} and {other} are of one layer and include each other")
    return problems


# --- files ------------------------------------------------------------------------------------------------------------

def length(tree):
    """No source file is longer than MAX_LINES."""
    problems = []
    for path, text in tree.texts(*CODE, *SCRIPTS):
        count = text.count("\n")
        if count > MAX_LINES:
            problems.append(f"{path}:{count}: {count} lines; {MAX_LINES} are the limit: split it by purpose")
    return problems


VERSION_SUFFIX = re.compile(r"(_v\d+|_old|_new|_final|_copy|_bak|_orig)(?=[._]|$)")
SOURCE_NAME = re.compile(r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")


def names(tree):
    """Source files are snake_case and carry no version or leftover suffix."""
    problems = []
    for path in sorted(tree.files):
        base = path.rsplit("/", 1)[-1]
        if not base.endswith(CODE + (".py",)):
            continue
        if not SOURCE_NAME.match(base):
            problems.append(f"{path}:1: file names are snake_case")
        if VERSION_SUFFIX.search(base):
            problems.append(f"{path}:1: a file name says what is in the file, not which attempt it is")
    return problems


def text_form(tree):
    """UTF-8, LF, no tabs in code, no blanks at line ends, one newline at the end, no merge conflict markers."""
    problems = []
    conflict = re.compile(r"^(<{7}|>{7}) ")
    for path, text in tree.texts():
        if MALFORMED.search(path):
            continue
        for number, _ in lines_matching(text, conflict):
            problems.append(f"{path}:{number}: a merge conflict marker")
        if not path.endswith(CODE + SCRIPTS + (".md", ".txt", "dev")) or path.startswith("tests/data/"):
            continue
        if "\r" in text:
            problems.append(f"{path}:1: line ends are LF")
        if text and not text.endswith("\n"):
            problems.append(f"{path}:{text.count(chr(10)) + 1}: no newline at the end")
        if path.endswith(CODE + (".py",)):
            for number, _ in lines_matching(text, re.compile(r"\t")):
                problems.append(f"{path}:{number}: a tab")
            for number, _ in lines_matching(text, re.compile(r"[ ]+$")):
                problems.append(f"{path}:{number}: blanks at the end of the line")
    return problems


# --- words ------------------------------------------------------------------------------------------------------------

# Written in pieces, so that this file passes its own rule.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(" + "|".join(("wo" + "rk", "ho" + "me", "ro" + "ot", "Us" + "ers")) + r")/[\w.]")
REGISTRY_HOST = re.compile(r"\b(pypi|files\.pythonhosted|pythonhosted|(deb|security|packages)\.debian|registry\.npmjs|npmjs|"
                           r"proxy\.golang|crates|nuget)\.(org|io|com)\b")
OPEN_TASK = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b(?!ING)(?!\(#\d+\))")


def words(tree):
    """No paths of one machine, no hosts of package registries, no open tasks without an issue number."""
    problems = []
    for path, text in tree.texts():
        if MALFORMED.search(path):
            continue
        for number, match in lines_matching(text, MACHINE_PATH):
            problems.append(f"{path}:{number}: '{match.group(0)}...' is a path of one machine")
        for number, match in lines_matching(text, REGISTRY_HOST):
            problems.append(f"{path}:{number}: '{match.group(0)}' names the host of a package registry")
        if path.endswith(CODE + SCRIPTS):
            for number, match in lines_matching(text, OPEN_TASK):
                problems.append(f"{path}:{number}: {match.group(1)} without an issue number, as in {match.group(1)}(#12)")
    return problems


BACKEND_CONDITION = re.compile(
    r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\b(PIVOT_\w*(?:CUDA|GPU)\w*|USE_\w+|WITH_\w+|HAVE_CUDA\w*|__CUDACC__|__CUDA_ARCH__)")


def backends(tree):
    """A back-end is a folder and a factory: no conditional compilation on one outside src/ops/cuda and src/comm."""
    problems = []
    for path, text in tree.texts(*CODE):
        if path.startswith(("src/ops/cuda/", "src/comm/")):
            continue
        for number, match in lines_matching(text, BACKEND_CONDITION):
            problems.append(f"{path}:{number}: conditional compilation on {match.group(1)}; put the code into its back-end's folder")
    return problems


# --- build ------------------------------------------------------------------------------------------------------------

def guards(tree):
    """Headers start with #pragma once (after comments); a .cpp with a header of its name includes that first."""
    problems = []
    for path, text in tree.texts(".h", ".cuh"):
        body = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S).lstrip()
        if not body.startswith("#pragma once"):
            problems.append(f"{path}:1: a header starts with #pragma once")
    for path, text in tree.texts(".cpp", ".cu", under="src/"):
        own = re.sub(r"\.(cpp|cu)$", ".h", path)
        if own in tree.files:
            first = re.search(r'^\s*#\s*include\s+[<"]([^">]+)', text, re.M)
            if not first or "src/" + first.group(1) != own:
                problems.append(f"{path}:1: include {own[4:]} first; that proves the header needs nothing before it")
    return problems


def cmake_lists(tree):
    """Every source file is named in a CMakeLists.txt of its own or an enclosing folder; every one of those is entered."""
    problems = []
    cmake = {os.path.dirname(p): t for p, t in tree.texts("CMakeLists.txt")}
    for path, _ in tree.texts(".cpp", ".cu"):
        if not path.startswith(("src/", "apps/", "tests/", "bench/")) or MALFORMED.search(path):
            continue
        folder, named = os.path.dirname(path), False
        while not named:
            relative = os.path.relpath(path, folder or ".")
            text = cmake.get(folder, "")
            named = re.search(r"(?<![\w/.-])" + re.escape(relative) + r"(?![\w/.-])", text) is not None
            if not folder:
                break
            folder = os.path.dirname(folder)
        if not named:
            problems.append(f"{path}:1: no CMakeLists.txt names it: it is dead, or it was forgotten")
    for folder in sorted(cmake):
        if not folder:
            continue
        entered, above = False, os.path.dirname(folder)
        while True:
            relative = os.path.relpath(folder, above or ".")
            text = cmake.get(above, "")
            entered = entered or re.search(r"add_subdirectory\(\s*" + re.escape(relative) + r"\s*\)", text) is not None
            if entered or not above:
                break
            above = os.path.dirname(above)
        if not entered:
            problems.append(f"{folder}/CMakeLists.txt:1: no add_subdirectory({os.path.basename(folder)}) enters it")
    return problems


# --- data and documents -----------------------------------------------------------------------------------------------

def assets(tree):
    """Every JSON, YAML and TOML file parses."""
    problems = []
    for path, text in tree.texts(".json", ".jsonl", ".yaml", ".yml", ".toml"):
        if MALFORMED.search(path):
            continue
        try:
            if path.endswith(".json"):
                json.loads(text)
            elif path.endswith(".jsonl"):
                for line in filter(None, text.split("\n")):
                    json.loads(line)
            elif path.endswith(".toml"):
                import tomllib
                tomllib.loads(text)
            else:
                import yaml
                list(yaml.safe_load_all(text))
        except ImportError as error:
            problems.append(f"{path}:1: cannot be checked: {error} (Debian: python3-yaml)")
        except Exception as error:  # each parser has an exception of its own
            problems.append(f"{path}:1: does not parse: {error}")
    return problems


LINK = re.compile(r"\]\(([^)\s#]+)(#[^)]*)?\)")
SECTION = re.compile(r"\bspecification (\d+(?:\.\d+)?)\b")


def sections(specification):
    """The numbers that can be cited: headings "## 2." and "### 2.4 ", and numbered points of a section without these."""
    found, section = set(), None
    for line in specification.split("\n"):
        heading = re.match(r"#+ (\d+(?:\.\d+)?)[. ]", line)
        point = re.match(r"(\d+)\. ", line)
        if heading:
            section = heading.group(1)
            found.add(section)
        elif point and section and "." not in section:
            found.add(f"{section}.{point.group(1)}")
    return found


def documents(tree):
    """Relative links of Markdown files lead somewhere; cited sections of the specification exist."""
    problems = []
    headings = sections(tree.files.get("docs/specification.md") or "")
    folders = {os.path.dirname(p) for p in tree.files}
    folders |= {f[:i] for f in folders for i, c in enumerate(f) if c == "/"}
    for path, text in tree.texts(".md"):
        for number, line in enumerate(text.split("\n"), 1):
            for match in LINK.finditer(line):
                target = match.group(1)
                if "://" in target or target.startswith("mailto:"):
                    continue
                full = os.path.normpath(os.path.join(os.path.dirname(path), target))
                if full not in tree.files and full not in folders:
                    problems.append(f"{path}:{number}: the link to {target} leads nowhere")
    if headings:
        for path, text in tree.texts(*CODE, ".md", ".py"):
            if path == "docs/specification.md":
                continue
            for number, match in lines_matching(text, SECTION):
                if match.group(1) not in headings:
                    problems.append(f"{path}:{number}: docs/specification.md has no section {match.group(1)}")
    return problems


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def options(tree):
    """An option that Markdown shows after `pivot`, or alone, and one that a message advises, is an option of this repository."""
    defined = {"--help"}
    for path, text in tree.texts(".cpp", ".py", ".sh"):
        if path.startswith("apps/") or not path.endswith(".cpp"):
            defined.update(OPTION.findall("\n".join(line for line in text.split("\n") if "add_" in line or '"--' in line or ",--" in line)))
    problems = []
    for path, text in tree.texts(".md"):
        for number, line in enumerate(text.split("\n"), 1):
            shown = [span for span in re.findall(r"`([^`]+)`", line) if span.startswith(("pivot ", "--"))]
            if line.startswith("    pivot "):
                shown.append(line.strip())
            for name in sorted({name for span in shown for name in OPTION.findall(span)} - defined):
                problems.append(f"{path}:{number}: nothing here has an option {name}")
    for path, text in tree.texts(".cpp"):
        if path.startswith("src/") and not path.startswith("src/base/"):  # there: CSS variables, options of cmake
            for number, match in lines_matching(text, re.compile(r'"[^"]*?(?<![\w-])(--[a-z][a-z0-9-]*)')):
                if match.group(1) not in defined:
                    problems.append(f"{path}:{number}: nothing here has an option {match.group(1)}")
    return problems


RULES = {rule.__name__: rule for rule in
         (layers, length, names, text_form, words, backends, guards, cmake_lists, assets, documents, options)}
