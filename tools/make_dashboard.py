#!/usr/bin/env python3
"""Makes the Grafana dashboard from the metric table.

    pivot metrics --json | tools/make_dashboard.py > deploy/grafana/pivot.json

Every metric of the table gets a panel in the row of its section, by its type; the first row is chosen by hand. A new
row of the table is on the dashboard the next time this runs, and a test compares the two.
"""
import json
import sys

SELECT = 'job=~"$job", instance=~"$instance"'
WIDTH = 24
# Sections in the order of their rows; those after the first few are folded.
ROWS = [("requests", "Requests", False), ("latency", "Latency", False), ("tokens", "Throughput", False),
        ("engine", "Engine", False), ("cache", "Cache by component", False), ("disk tier", "Cache on disk", True),
        ("structured output", "Structured output", True), ("http", "HTTP", True), ("identity", "Identity", True),
        ("recall", "Recall and canaries", False), ("process", "Process", True)]
UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "percentunit"}
HEATMAPS = {"pivot_time_to_first_token_seconds", "pivot_inter_token_seconds"}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

# title, expression, unit, decimals, thresholds (value, colour)
OVERVIEW = [
    ("Ready", f"min(pivot_ready{{{SELECT}}})", "bool_yes_no", 0, [(None, "red"), (1, "green")]),
    ("Running", f"sum(pivot_sequences_running{{{SELECT}}})", "short", 0, []),
    ("Waiting", f"sum(pivot_requests_waiting{{{SELECT}}})", "short", 0, [(None, "green"), (1, "orange"), (100, "red")]),
    ("Tokens per second", f"sum(rate(pivot_generated_tokens_total{{{SELECT}}}[$__rate_interval]))", "short", 0, []),
    ("First token, 95th percentile",
     f"histogram_quantile(0.95, sum by (le) (rate(pivot_time_to_first_token_seconds_bucket{{{SELECT}}}[$__rate_interval])))",
     "s", 2, []),
    ("Between tokens, 95th percentile",
     f"histogram_quantile(0.95, sum by (le) (rate(pivot_inter_token_seconds_bucket{{{SELECT}}}[$__rate_interval])))", "s", 4, []),
    ("Failed requests",
     f'sum(rate(pivot_requests_total{{outcome="failed", {SELECT}}}[$__rate_interval])) / '
     f"(sum(rate(pivot_requests_total{{{SELECT}}}[$__rate_interval])) > 0) or vector(0)",
     "percentunit", 2, [(None, "green"), (0.01, "red")]),
    ("Prompt tokens from the cache",
     f"sum(rate(pivot_prefix_cache_hit_tokens_total{{{SELECT}}}[$__rate_interval])) / "
     f"(sum(rate(pivot_prefix_cache_query_tokens_total{{{SELECT}}}[$__rate_interval])) > 0)", "percentunit", 0, []),
]


def words(metric):
    """"pivot_prefix_cache_hit_tokens_total" as "Prefix cache hit tokens"."""
    name = metric["name"].removeprefix("pivot_").removesuffix("_total")
    for unit in ("_seconds", "_bytes", "_ratio", "_info"):
        name = name.removesuffix(unit)
    return name.replace("_", " ").capitalize()


def target(expression, legend, ref, **more):
    return {"datasource": SOURCE, "expr": expression, "legendFormat": legend, "refId": ref, **more}


def panel(kind, title, description, targets, unit, **more):
    return {"type": kind, "title": title, "description": description, "datasource": SOURCE, "targets": targets,
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []}, "options": {}, **more}


def series_panel(title, description, targets, unit, stack=False):
    made = panel("timeseries", title, description, targets, unit)
    made["fieldConfig"]["defaults"]["custom"] = {
        "fillOpacity": 20 if stack else 0, "showPoints": "never", "stacking": {"mode": "normal" if stack else "none"}}
    made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return made


def metric_panels(metric):
    name, kind = metric["name"], metric["type"]
    labels = [label["name"] for label in metric["labels"]]
    grouped = f" by ({', '.join(labels)})" if labels else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels) or "{{instance}}"
    unit = UNITS.get(metric["unit"], "short")
    if metric["section"] == "identity" and labels:
        made = panel("table", words(metric), metric["help"],
                     [target(f"{name}{{{SELECT}}}", "", "A", format="table", instant=True)], "short")
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": {
            "Time": True, "Value": True, "__name__": True, "job": True}}}]
        return [made]
    if kind == "histogram":
        by = ", ".join(["le"] + labels)
        legend = " ".join(f"{{{{{label}}}}}" for label in labels)
        targets = [target(f"histogram_quantile({q}, sum by ({by}) (rate({name}_bucket{{{SELECT}}}[$__rate_interval])))",
                          f"{legend} p{int(q * 100)}".strip(), "ABC"[i]) for i, q in enumerate((0.5, 0.95, 0.99))]
        panels = [series_panel(words(metric), metric["help"], targets, unit)]
        if name in HEATMAPS:
            heat = panel("heatmap", words(metric) + ", all", metric["help"],
                         [target(f"sum by (le) (increase({name}_bucket{{{SELECT}}}[$__rate_interval]))", "{{le}}", "A",
                                 format="heatmap")], unit)
            heat["options"] = {"calculate": False, "yAxis": {"unit": unit}, "cellGap": 1, "color": {"mode": "scheme", "scheme": "Oranges"}}
            panels.append(heat)
        return panels
    if kind == "counter":
        expression = f"sum{grouped} (rate({name}{{{SELECT}}}[$__rate_interval]))"
        legend = legend if labels else words(metric)
        # Seconds per second is a share of the time.
        unit = {"s": "percentunit", "bytes": "Bps"}.get(unit, "short")
        return [series_panel(words(metric) + " per second", metric["help"], [target(expression, legend, "A")], unit, bool(labels))]
    by = ", ".join(["instance"] + labels)
    legend = "{{instance}} " + legend if labels else legend
    return [series_panel(words(metric), metric["help"],
                         [target(f"sum by ({by}) ({name}{{{SELECT}}})", legend, "A")], unit, bool(labels))]


def overview_panel(title, expression, unit, decimals, thresholds):
    made = panel("stat", title, "", [target(expression, "", "A")], unit)
    steps = [{"color": colour, "value": value} for value, colour in thresholds] or [{"color": "blue", "value": None}]
    made["fieldConfig"]["defaults"].update(decimals=decimals, thresholds={"mode": "absolute", "steps": steps})
    made["options"] = {"colorMode": "value", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return made


class Grid:
    """Places panels from left to right, row by row."""

    def __init__(self):
        self.y, self.x, self.height, self.next_id = 0, 0, 0, 1

    def place(self, made, width, height):
        if self.x + width > WIDTH:
            self.new_line()
        made["gridPos"] = {"x": self.x, "y": self.y, "w": width, "h": height}
        made["id"] = self.next_id
        self.next_id += 1
        self.x += width
        self.height = max(self.height, height)
        return made

    def new_line(self):
        self.y += self.height
        self.x, self.height = 0, 0

    def row(self, title, collapsed):
        self.new_line()
        made = self.place({"type": "row", "title": title, "collapsed": collapsed, "panels": []}, WIDTH, 1)
        self.new_line()
        return made


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "refresh": 2, "sort": 1, "multi": True,
            "includeAll": True, "current": {"text": "All", "value": "$__all"},
            "query": {"query": query, "refId": name}, "definition": query}


def dashboard(metrics):
    grid, panels = Grid(), []
    panels.append(grid.row("Overview", False))
    for entry in OVERVIEW:
        panels.append(grid.place(overview_panel(*entry), 6, 4))
    for section, title, collapsed in ROWS:
        row = grid.row(title, collapsed)
        panels.append(row)
        inside = row["panels"] if collapsed else panels
        for metric in metrics:
            if metric["section"] != section:
                continue
            for made in metric_panels(metric):
                inside.append(grid.place(made, 24 if made["type"] == "table" else 8, 7))
    left = {metric["section"] for metric in metrics} - {section for section, _, _ in ROWS}
    if left:
        raise SystemExit(f"make_dashboard.py: no row for the sections {sorted(left)}")
    return {
        "uid": "pivot-serve", "id": None, "title": "pivot", "tags": ["pivot", "llm"], "schemaVersion": 38, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}},
            variable("job", "Job", "label_values(pivot_ready, job)"),
            variable("instance", "Instance", 'label_values(pivot_ready{job=~"$job"}, instance)')]},
        "annotations": {"list": [{"name": "Starts", "datasource": SOURCE, "enable": True, "iconColor": "blue",
                                  "expr": f"changes(pivot_process_start_time_seconds{{{SELECT}}}[1m]) > 0",
                                  "titleFormat": "{{instance}} started"}]},
        "panels": panels,
    }


if __name__ == "__main__":
    json.dump(dashboard(json.load(sys.stdin)["metrics"]), sys.stdout, indent=1)
    print()
