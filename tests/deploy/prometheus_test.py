#!/usr/bin/env python3
"""A real Prometheus scrapes the real program: prometheus_test.py PIVOT SOURCE_DIR.

Every rule, alert and dashboard query evaluates without an error; scraped samples are accepted as they are; what a
running server must show is not empty. Exits with 77 where Debian's prometheus is not installed.
"""
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

import expressions

if not shutil.which("prometheus"):
    print("NEEDS PROMETHEUS: Debian's prometheus is not installed")
    sys.exit(77)

PIVOT, SOURCE = sys.argv[1], Path(sys.argv[2])


def get(url, data=None, timeout=30):
    request = urllib.request.Request(url, data, {"content-type": "application/json"} if data else {})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read().decode()


def wait_for(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"waited {seconds} s for {what}")


class LiveScrape(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.server = subprocess.Popen([PIVOT, "serve", "embedded", "--device", "cpu", "--port", "0", "--max-num-seqs", "4",
                                       "--max-model-len", "4096"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        cls.addClassCleanup(cls.end, cls.server)
        lines = []
        for line in cls.server.stdout:
            lines.append(line)
            if found := re.search(r"http://(127\.0\.0\.1:\d+)", line):
                cls.address = found.group(1)
                break
        else:
            raise AssertionError("".join(lines))
        threading.Thread(target=cls.server.stdout.read, daemon=True).start()
        wait_for(lambda: get(f"http://{cls.address}/ready"), "the server to be ready")

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        folder = Path(cls.folder.name)
        rules = [*SOURCE.glob("deploy/prometheus/*.rules.yml"), *SOURCE.glob("deploy/alerts/*.yml")]
        names = ", ".join(f'"{path}"' for path in rules)
        (folder / "prometheus.yml").write_text(
            f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{names}]\n"
            f'scrape_configs: [{{job_name: pivot, static_configs: [{{targets: ["{cls.address}"]}}]}}]\n')
        cls.prometheus = f"http://127.0.0.1:{port}"
        log = open(folder / "log", "w")
        cls.addClassCleanup(log.close)
        process = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        cls.addClassCleanup(cls.end, process)
        wait_for(lambda: get(f"{cls.prometheus}/-/ready"), "Prometheus to be ready")
        for text in ("Once upon a time", "Once upon a time", "The sea was calm"):
            body = {"prompt": text, "max_tokens": 12}
            get(f"http://{cls.address}/v1/completions", json.dumps(body).encode(), timeout=120)
        try:
            get(f"http://{cls.address}/v1/completions", b"{broken")
        except urllib.error.HTTPError as error:
            assert error.code == 400
        seen = 'sum(pivot_requests_total{outcome="finished"}) >= 3'
        wait_for(lambda: cls.query(seen), "the requests to be scraped")
        # A rate needs two scrapes; the rules are evaluated after them.
        wait_for(lambda: cls.query("rate(pivot_http_requests_total[1m]) > 0"), "a second scrape")
        wait_for(lambda: cls.query("rate(pivot_process_cpu_seconds_total[1m])"), "a second scrape")
        wait_for(lambda: cls.query("vllm:generation_tokens_total > 0"), "the rules to be evaluated")

    @staticmethod
    def end(process):
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()

    @classmethod
    def query(cls, expression):
        try:
            answer = get(f"{cls.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        answer = json.loads(answer)
        assert answer["status"] == "success" and not answer.get("warnings"), answer
        return answer["data"]["result"]

    def test_the_scrape_is_accepted(self):
        target = json.loads(get(f"{self.prometheus}/api/v1/targets"))["data"]["activeTargets"][0]
        self.assertEqual((target["health"], target["lastError"]), ("up", ""))
        told = {name: kinds[0]["type"] for name, kinds in json.loads(get(f"{self.prometheus}/api/v1/metadata"))["data"].items()}
        table = json.loads(subprocess.run([PIVOT, "metrics", "--json"], capture_output=True, check=True).stdout)["metrics"]
        for metric in table:
            if metric["name"] in told:
                self.assertEqual(told[metric["name"]], metric["type"], metric["name"])
        self.assertEqual({name for name in told if name.startswith("pivot_")} - {metric["name"] for metric in table}, set())

    def test_rules_evaluate(self):
        groups = json.loads(get(f"{self.prometheus}/api/v1/rules"))["data"]["groups"]
        self.assertGreaterEqual(len(groups), 4)
        for group in groups:
            for rule in group["rules"]:
                self.assertIn(rule["health"], ("ok",), f"{rule['name']}: {rule.get('lastError')}")
        firing = [rule["name"] for group in groups for rule in group["rules"] if rule.get("state") == "firing"]
        self.assertEqual(firing, [])

    def test_dashboard_queries_evaluate(self):
        empty = []
        for title, expression in expressions.dashboard(SOURCE / "deploy/grafana/pivot.json"):
            if not self.query(expressions.resolved(expression)):
                empty.append(title)
        # What only a canary or a first probe brings, and ratios of nothing.
        self.assertLess(len(empty), 12, empty)
        for wanted in ("Ready", "Running", "Cache pages", "Knob", "Checkpoint", "Requests per second"):
            self.assertNotIn(wanted, empty)

    def test_figures_add_up(self):
        value = lambda expression: float(self.query(expression)[0]["value"][1])
        self.assertEqual(value("sum(pivot_requests_received_total)"), value("sum(pivot_requests_total) + sum(pivot_requests_in_flight)"))
        self.assertEqual(value('sum(pivot_requests_total{outcome="refused", reason="invalid"})'), 1)
        self.assertGreaterEqual(value("pivot_generated_tokens_total"), 3)
        self.assertEqual(value("sum(pivot_prompt_tokens_total)"), value("pivot_request_prompt_tokens_sum"))
        pages = self.query('sum by (pool) (pivot_cache_pages)')
        self.assertTrue(all(float(one["value"][1]) > 0 for one in pages), pages)
        self.assertEqual(value("pivot_time_to_first_token_seconds_count"), 3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
