"""The PromQL expressions of deploy/ and the metric names and labels that they use."""
import json
import re
from pathlib import Path

SELECTOR = re.compile(r"\b(pivot_[a-z0-9_]+)\s*(\{[^{}]*\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
SCRAPE_LABELS = {"job", "instance"}


def rules(path):
    """(name, expression) of each rule of a rules file. The files keep to a form that needs no YAML library: `expr:` with
    its text on the line, or folded with `>-`."""
    found, name, folded, indent = [], None, None, 0
    for line in Path(path).read_text().splitlines():
        stripped = line.strip()
        if folded is not None:
            if stripped and len(line) - len(line.lstrip()) > indent:
                folded.append(stripped)
                continue
            found.append((name, " ".join(folded)))
            folded = None
        match = re.match(r"\s*- (?:record|alert): (\S+)", line)
        if match:
            name = match.group(1)
        match = re.match(r"(\s*)expr: (.*)", line)
        if match:
            if match.group(2) in (">-", ">"):
                folded, indent = [], len(match.group(1))
            else:
                found.append((name, match.group(2)))
    if folded is not None:
        found.append((name, " ".join(folded)))
    return found


def dashboard(path):
    """(panel title, expression) of each query, folded rows and annotations included."""
    found = []

    def visit(panel):
        found.extend((panel["title"], target["expr"]) for target in panel.get("targets", []))
        for inner in panel.get("panels", []):
            visit(inner)

    document = json.loads(Path(path).read_text())
    for panel in document["panels"]:
        visit(panel)
    found.extend((entry["name"], entry["expr"]) for entry in document["annotations"]["list"] if "expr" in entry)
    return found


def problems(expression, table):
    """What an expression asks of pivot's metrics that the table does not have."""
    found = []
    for name, selector in SELECTOR.findall(expression):
        metric, series = table.get(name), name
        if metric is None:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            metric = table.get(base)
            if metric is None or metric["type"] != "histogram":
                found.append(f"there is no metric {series}")
                continue
        elif metric["type"] == "histogram":
            found.append(f"{name} is a histogram: _bucket, _sum or _count is wanted")
            continue
        labels = {label["name"]: label["values"] for label in metric["labels"]}
        for label, operator, value in MATCHER.findall(selector):
            if label in SCRAPE_LABELS or (label == "le" and metric["type"] == "histogram"):
                continue
            if label not in labels:
                found.append(f"{name} has no label {label}")
            elif labels[label] and "$" not in value:
                wanted = value.split("|") if "~" in operator else [value]
                found.extend(f"{name}: label {label} is never {one!r}" for one in wanted if one not in labels[label])
    return found


def resolved(expression, job="pivot"):
    """A dashboard's expression as Prometheus takes it."""
    return expression.replace("$__rate_interval", "1m").replace("$job", job).replace("$instance", ".*")
