#!/usr/bin/env python3
"""deploy/ against the program: deploy_test.py PIVOT SOURCE_DIR.

Names and labels of every rule, alert, dashboard query and of the page against the metric table; rules with promtool;
units with systemd-analyze; configuration files with the program itself.
"""
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import expressions

PIVOT, SOURCE = sys.argv[1], Path(sys.argv[2])
DEPLOY = SOURCE / "deploy"
TABLE = {}


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


def rule_files():
    return sorted(DEPLOY.glob("prometheus/*.rules.yml")) + sorted(DEPLOY.glob("alerts/*.yml"))


class Expressions(unittest.TestCase):
    def check(self, where, found):
        self.assertTrue(found, where)
        for name, expression in found:
            self.assertEqual(expressions.problems(expression, TABLE), [], f"{where}: {name}: {expression}")

    def test_rules_and_alerts(self):
        for path in rule_files():
            self.check(path.name, expressions.rules(path))

    def test_dashboard(self):
        self.check("pivot.json", expressions.dashboard(DEPLOY / "grafana/pivot.json"))

    def test_page(self):
        text = (SOURCE / "src/server/page/files/figures.js").read_text()
        names = re.findall(r'"(pivot_[a-z0-9_]+)"', text)
        self.assertGreater(len(names), 4)
        for name in names:
            self.assertIn(name, TABLE)

    def test_the_check_finds_faults(self):
        for bad, part in [("pivot_nothing_total", "no metric"), ("pivot_inter_token_seconds", "histogram"),
                          ('pivot_requests_total{state="x"}', "no label"), ('pivot_requests_total{outcome="lost"}', "never"),
                          ("rate(pivot_ready_bucket[1m])", "no metric")]:
            self.assertIn(part, " ".join(expressions.problems(bad, TABLE)), bad)


class Dashboard(unittest.TestCase):
    def test_is_made_from_the_table(self):
        made = run(sys.executable, SOURCE / "tools/make_dashboard.py", input=json.dumps({"metrics": list(TABLE.values())}))
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(made.stdout, (DEPLOY / "grafana/pivot.json").read_text(),
                         "make it anew: pivot metrics --json | tools/make_dashboard.py > deploy/grafana/pivot.json")

    def test_shows_every_metric(self):
        text = " ".join(expression for _, expression in expressions.dashboard(DEPLOY / "grafana/pivot.json"))
        for name in TABLE:
            self.assertRegex(text, rf"\b{name}(_bucket)?\b")

    def test_can_be_imported_anywhere(self):
        document = json.loads((DEPLOY / "grafana/pivot.json").read_text())
        self.assertIsNone(document["id"])
        panels = document["panels"] + [inner for panel in document["panels"] for inner in panel.get("panels", [])]
        ids = [panel["id"] for panel in panels]
        self.assertEqual(len(ids), len(set(ids)))
        for panel in panels:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24)
            if panel["type"] != "row":
                self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                self.assertTrue(panel["targets"])


class Rules(unittest.TestCase):
    def setUp(self):
        if not shutil.which("promtool"):
            self.skipTest("NEEDS PROMTOOL: Debian's prometheus is not installed")

    def test_they_are_valid(self):
        result = run("promtool", "check", "rules", *map(str, rule_files()))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        result = run("promtool", "check", "config", str(DEPLOY / "prometheus/prometheus.yml"))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_alerts_fire_when_they_should(self):
        for path in sorted((SOURCE / "tests/deploy").glob("*.test.yml")):
            result = run("promtool", "test", "rules", path.name, cwd=path.parent)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class Units(unittest.TestCase):
    def setUp(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("NEEDS SYSTEMD: systemd-analyze is not installed")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        text = (DEPLOY / "systemd/pivot.service").read_text()
        self.assertIn("ExecStart=/usr/bin/pivot serve", text)
        self.unit = Path(self.folder.name) / "pivot.service"
        self.unit.write_text(text.replace("/usr/bin/pivot", PIVOT))

    def test_unit_is_valid(self):
        drop_in = self.unit.parent / "pivot.service.d"
        drop_in.mkdir()
        shutil.copy(DEPLOY / "systemd/numa.conf", drop_in)
        result = run("systemd-analyze", "verify", "--man=no", str(self.unit))
        complaints = [line for line in (result.stdout + result.stderr).splitlines() if "pivot" in line or "numa.conf" in line]
        self.assertEqual((result.returncode, complaints), (0, []))

    def test_unit_is_hardened(self):
        result = run("systemd-analyze", "security", "--offline=yes", "--threshold=25", "--no-pager", str(self.unit))
        self.assertEqual(result.returncode, 0, result.stdout[-400:] + result.stderr)

    def test_unit_lets_the_gpu_through(self):
        directives = [line for line in self.unit.read_text().splitlines() if line and line[0] not in "#["]
        for forbidden in ("PrivateDevices=yes", "MemoryDenyWriteExecute=yes", "ProcSubset=pid", "PrivateUsers=yes"):
            self.assertNotIn(forbidden, directives)
        self.assertIn("DeviceAllow=char-nvidia-uvm rw", directives)
        self.assertIn("Type=notify", directives)


class Configuration(unittest.TestCase):
    def parse(self, path):
        """The program reads the file, then fails for want of the model alone (on any machine, with any device)."""
        text = re.sub(r'^model = .*$', 'model = "/nonexistent/model"', Path(path).read_text(), flags=re.M)
        text = re.sub(r"^device = .*$", 'device = "cpu"', text, flags=re.M)
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(text)
            file.flush()
            return run(PIVOT, "serve", "--config", file.name, env={})

    def test_examples_are_read(self):
        paths = sorted((DEPLOY / "config").glob("*.toml"))
        self.assertGreaterEqual(len(paths), 3)
        for path in paths:
            result = self.parse(path)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("/nonexistent/model", result.stderr, f"{path.name}: {result.stderr[-600:]}")

    def test_a_wrong_key_is_not(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('model = "/nonexistent/model"\nno_such_key = 1\n')
            file.flush()
            result = run(PIVOT, "serve", "--config", file.name, env={})
        self.assertIn("no_such_key", result.stderr)


if __name__ == "__main__":
    TABLE.update({metric["name"]: metric for metric in json.loads(run(PIVOT, "metrics", "--json").stdout)["metrics"]})
    unittest.main(argv=sys.argv[:1], verbosity=2)
