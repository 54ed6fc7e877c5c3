#!/usr/bin/env python3
"""The page at / in headless Chromium: page_test.py PIVOT [--screenshots FOLDER].

Against the program itself with its embedded model, and, for what that model cannot say on demand (thinking, tool calls,
an error in the middle), against a scripted server that hands out the same files. Exits with 77 where Chromium or
playwright is missing.
"""
import argparse
import http.server
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
from pathlib import Path

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    print("NEEDS PLAYWRIGHT: the Python package playwright is not installed (tools/requirements-test.txt)")
    sys.exit(77)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if not CHROMIUM:
    print("NEEDS CHROMIUM: Debian's chromium is not installed")
    sys.exit(77)

FILES = Path(__file__).resolve().parents[3] / "src/server/page/files"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
OPTIONS = None
BROWSER = None


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers /v1/chat/completions with the deltas of `script`, one event each."""
    script, requests, pause, policy = [], [], 0.0, ""
    hold = threading.Event()

    def log_message(self, *_):
        pass

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-security-policy", self.policy)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path
        if path == "/metrics":
            return self.reply(200, "text/plain", b'pivot_sequences_running 1\npivot_requests_waiting 2\n'
                              b'pivot_cache_pages{pool="ratio4",state="used"} 25\n'
                              b'pivot_cache_pages{pool="ratio4",state="evictable"} 25\n'
                              b'pivot_cache_pages{pool="ratio4",state="free"} 50\n')
        if path == "/v1/models":
            return self.reply(200, "application/json", b'{"data": [{"id": "scripted", "max_model_len": 4096}]}')
        file = FILES / ("index.html" if path == "/" else path.removeprefix("/page/"))
        return self.reply(200, TYPES[file.suffix], file.read_bytes())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Scripted.requests.append((dict(self.headers), body))
        if not self.script:
            return self.reply(400, "application/json", b'{"error": {"message": "max_tokens is too large"}}')
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            for delta, finish in self.script:
                if delta == "hold":
                    self.hold.wait(20)
                    continue
                event = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
                if delta == "error":
                    event = {"error": {"message": "the device is gone"}}
                text = "data: " + json.dumps(event, ensure_ascii=False) + "\n\n"
                # Cut anywhere: the page must put events and characters together again.
                data = text.encode()
                self.wfile.write(data[:7])
                self.wfile.flush()
                self.wfile.write(data[7:])
                self.wfile.flush()
            usage = {"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 12,
                                              "prompt_tokens_details": {"cached_tokens": 64}}}
            self.wfile.write(("data: " + json.dumps(usage) + "\n\ndata: [DONE]\n\n").encode())
        except OSError:
            pass


class PageTest(unittest.TestCase):
    def setUp(self):
        self.problems = []

    def open(self, address, **options):
        context = BROWSER.new_context(**options)
        self.addCleanup(context.close)
        page = context.new_page()
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.goto(address)
        self.wait(page, "document.getElementById('model').textContent !== ''")
        return page

    def wait(self, page, expression, timeout=60):
        """Until it is true. Playwright's own waiting evaluates strings in the page, which its policy forbids."""
        end = time.monotonic() + timeout
        while not page.evaluate(expression):
            self.assertLess(time.monotonic(), end, f"never true: {expression}")
            time.sleep(0.05)

    def ask(self, page, text):
        page.fill("#prompt", text)
        page.press("#prompt", "Enter")

    def finished(self, page, timeout=60_000):
        page.wait_for_selector("#send:visible", timeout=timeout)


class ScriptedPage(PageTest):
    @classmethod
    def setUpClass(cls):
        source = (FILES.parent / "page.h").read_text()
        Scripted.policy = "".join(re.findall(r'"([^"]*)"', source[source.index("kPageSecurityPolicy"):]))
        assert "script-src 'self'" in Scripted.policy
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        cls.address = f"http://127.0.0.1:{cls.server.server_port}/"

    @classmethod
    def tearDownClass(cls):
        Scripted.hold.set()
        cls.server.shutdown()

    def setUp(self):
        super().setUp()
        Scripted.requests.clear()
        Scripted.hold.clear()

    def test_thinking_is_folded_and_text_is_text(self):
        Scripted.script = [({"role": "assistant", "reasoning_content": "Let me "}, None), ({"reasoning_content": "see."}, None),
                           ({"content": "<b>Not bold</b> 北京 😀\n```\nx < 1\n```\nend"}, None), ({}, "stop")]
        page = self.open(self.address)
        self.ask(page, "Hello <i>there</i>")
        self.finished(page)
        self.assertEqual(page.inner_text(".user .body >> nth=-1"), "Hello <i>there</i>")
        answer = page.locator("li.assistant")
        self.assertIn("<b>Not bold</b> 北京 😀", answer.inner_text())
        self.assertEqual(answer.locator("b").count(), 0)
        self.assertEqual(answer.locator("pre code").first.inner_text(), "x < 1")
        self.assertFalse(answer.locator("details.thinking").evaluate("node => node.open"))
        answer.locator("summary").click()
        self.assertEqual(answer.locator("details .body").inner_text(), "Let me see.")
        self.assertIn("12 tokens", answer.locator(".foot").inner_text())
        self.assertIn("64 of 90 prompt tokens from the cache", answer.locator(".foot").inner_text())
        self.assertEqual(page.inner_text("#status"), "The answer is complete.")
        self.assertEqual(self.problems, [])

    def test_stop_ends_the_answer_and_keeps_it(self):
        Scripted.script = [({"content": "One, two"}, None), ("hold", None), ({"content": " never"}, None)]
        page = self.open(self.address)
        self.ask(page, "Count")
        self.wait(page, "[...document.querySelectorAll('li.assistant > .body')].at(-1)?.textContent === 'One, two'")
        self.assertTrue(page.is_visible("#stop"))
        page.press("#prompt", "Escape")
        self.finished(page)
        self.assertIn("Stopped.", page.inner_text("li.assistant .foot"))
        page.reload()
        self.assertIn("One, two", page.inner_text("#log"))
        page.press("body", "Alt+n")
        self.assertEqual(page.locator("#log li").count(), 0)
        page.reload()
        self.assertEqual(page.locator("#log li").count(), 0)

    def test_tool_calls_are_shown_and_answered(self):
        Scripted.script = [
            ({"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": ""}}]}, None),
            ({"tool_calls": [{"index": 0, "function": {"arguments": "{\"city\": \"Kra"}}]}, None),
            ({"tool_calls": [{"index": 0, "function": {"arguments": "ków\"}"}}]}, None), ({}, "tool_calls")]
        page = self.open(self.address)
        page.click("#show-settings")
        page.fill("[name=tools]", '[{"name": "weather", "parameters": {"type": "object"}}]')
        page.fill("[name=system]", "Be brief.")
        page.fill("[name=temperature]", "0.3")
        page.uncheck("[name=thinking]")
        self.ask(page, "Weather?")
        self.finished(page)
        card = page.locator(".tool")
        self.assertIn("weather", card.locator("h4").inner_text())
        self.assertEqual(card.locator("pre").inner_text(), '{"city": "Kraków"}')
        Scripted.script = [({"content": "It rains."}, None), ({}, "stop")]
        card.locator("textarea").fill("rain")
        card.locator("button").click()
        page.wait_for_selector("text=It rains.")
        self.finished(page)
        first, second = (body for _, body in Scripted.requests)
        self.assertEqual(first["tools"][0]["function"]["name"], "weather")
        self.assertEqual(first["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertEqual(first["temperature"], 0.3)
        self.assertEqual(first["chat_template_kwargs"], {"thinking": False})
        self.assertEqual([message["role"] for message in second["messages"]], ["system", "user", "assistant", "tool"])
        self.assertEqual(second["messages"][2]["tool_calls"][0]["id"], "call_1")
        self.assertEqual(second["messages"][3]["tool_call_id"], "call_1")
        self.assertEqual(page.locator(".tool form").count(), 0)
        self.assertEqual(self.problems, [])

    def test_errors_are_told(self):
        Scripted.script = []
        page = self.open(self.address)
        self.ask(page, "x")
        self.finished(page)
        self.assertIn("max_tokens is too large", page.inner_text("li.assistant .problem"))
        Scripted.script = [({"content": "Half"}, None), ("error", None)]
        self.ask(page, "y")
        self.finished(page)
        last = page.locator("li.assistant").last
        self.assertIn("Half", last.inner_text())
        self.assertIn("the device is gone", last.locator(".problem").inner_text())
        page.click("#show-settings")
        page.fill("[name=tools]", "{broken")
        asked = len(Scripted.requests)
        self.ask(page, "z")
        self.assertIn("Tools:", page.inner_text("#tools-problem"))
        self.assertEqual(len(Scripted.requests), asked)

    def test_key_is_sent_and_not_kept(self):
        Scripted.script = [({"content": "ok"}, None), ({}, "stop")]
        page = self.open(self.address)
        page.click("#show-settings")
        page.fill("[name=key]", "secret")
        page.press("[name=key]", "Tab")
        self.ask(page, "x")
        self.finished(page)
        self.assertEqual(Scripted.requests[-1][0]["authorization"], "Bearer secret")
        self.assertNotIn("secret", page.evaluate("JSON.stringify(localStorage)"))

    def test_figures(self):
        page = self.open(self.address)
        page.wait_for_selector("#cache rect.used")
        self.assertEqual(page.inner_text("#queue output"), "1 running, 2 waiting")
        self.assertEqual(page.inner_text("#cache output"), "25 % of pages used")
        self.assertEqual(page.get_attribute("#cache rect.free", "width"), "50")
        page.press("body", "Alt+f")
        self.assertFalse(page.is_visible("#figures"))

    def test_accessible_names_and_keyboard(self):
        page = self.open(self.address)
        page.click("#show-settings")
        unnamed = page.evaluate("""() => [...document.querySelectorAll('button, input, textarea')]
            .filter(node => !(node.labels?.length || node.textContent.trim() || node.ariaLabel)).map(node => node.outerHTML)""")
        self.assertEqual(unnamed, [])
        page.reload()
        page.locator(".skip").focus()
        self.assertEqual(page.evaluate("document.querySelector('.skip').getBoundingClientRect().left"), 0)
        page.keyboard.press("Enter")
        self.assertEqual(page.evaluate("document.activeElement.id"), "prompt")

    def test_contrast(self):
        for scheme in ("light", "dark"):
            page = self.open(self.address, color_scheme=scheme)
            ratios = page.evaluate("""() => {
                const style = getComputedStyle(document.documentElement);
                const light = (name) => {
                  const value = style.getPropertyValue(name).trim();
                  const part = (at) => { const c = parseInt(value.slice(at, at + 2), 16) / 255;
                    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
                  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
                };
                const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
                return [["--text", "--ground"], ["--text", "--raised"], ["--text", "--tint"], ["--quiet", "--ground"],
                  ["--quiet", "--raised"], ["--bad", "--ground"], ["--bad", "--raised"], ["--on-accent", "--accent"]]
                  .map(([a, b]) => [a + " on " + b, ratio(a, b)]);
            }""")
            for name, ratio in ratios:
                self.assertGreaterEqual(ratio, 4.5, f"{scheme}: {name}")

    def test_phone(self):
        page = self.open(self.address, viewport={"width": 360, "height": 640}, has_touch=True)
        self.assertTrue(page.is_visible("#prompt"))
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
        page.click("#show-figures")
        self.assertTrue(page.is_visible("#figures"))
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
        self.assertTrue(page.is_visible("#send"))


class LivePage(PageTest):
    @classmethod
    def setUpClass(cls):
        cls.program = subprocess.Popen(
            [OPTIONS.pivot, "serve", "embedded", "--device", "cpu", "--port", "0", "--max-num-seqs", "4",
             "--max-model-len", "16384"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines, cls.address = [], None
        for line in cls.program.stdout:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                cls.address = found.group(0)
                break
        assert cls.address, "".join(lines)
        threading.Thread(target=cls.program.stdout.read, daemon=True).start()
        for _ in range(100):
            try:
                if urllib.request.urlopen(cls.address + "/ready").status == 200:
                    break
            except OSError:
                time.sleep(0.1)

    @classmethod
    def tearDownClass(cls):
        cls.program.send_signal(signal.SIGTERM)
        try:
            cls.program.wait(30)
        except subprocess.TimeoutExpired:
            cls.program.kill()

    def test_page_is_served_as_it_should(self):
        with urllib.request.urlopen(self.address + "/") as answer:
            policy = answer.headers["content-security-policy"]
            self.assertEqual(answer.headers["x-content-type-options"], "nosniff")
            text, tag = answer.read().decode(), answer.headers["etag"]
        self.assertEqual(text, (FILES / "index.html").read_text())
        self.assertNotIn("unsafe", policy)
        self.assertIn("default-src 'none'", policy)
        self.assertIsNone(re.search(r"<script(?! type=\"module\" src=)|<style|style=|onclick=", text))
        again = urllib.request.Request(self.address + "/", headers={"if-none-match": tag})
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(again)
        self.assertEqual(caught.exception.code, 304)

    def test_chat_streams_and_figures_move(self):
        page = self.open(self.address)
        page.click("#show-settings")
        page.fill("[name=max_tokens]", "48")
        page.uncheck("[name=thinking]")
        page.click("#show-settings")
        self.ask(page, "The weather was fine, and they went down to the river together. What did they see there?")
        self.wait(page, "document.querySelector('li.assistant > .body')?.textContent.length > 0")
        self.finished(page)
        self.assertIn("tokens", page.inner_text("li.assistant .foot"))
        self.assertEqual(page.locator(".problem:not(:empty)").count(), 0)
        self.wait(page, "document.querySelectorAll('#first path')[0]?.getAttribute('d')?.length > 0")
        self.assertEqual(page.locator("#cache dt").count(), 3)
        self.assertEqual(self.problems, [])

    def test_screenshots(self):
        if not OPTIONS.screenshots:
            self.skipTest("no folder for screenshots was named")
        folder = Path(OPTIONS.screenshots)
        cases = json.loads((FILES.parents[3] / "models/needle/needle_cases.json").read_text())
        needle = re.sub("<｜[^｜]*｜>|</?think>", "", min(cases, key=lambda case: len(case["prompt"]))["prompt"]).strip()
        for scheme in ("light", "dark"):
            page = self.open(self.address, color_scheme=scheme, viewport={"width": 1280, "height": 800})
            self.ask(page, needle)
            self.finished(page, 120_000)
            # The embedded model thinks for as long as it may.
            page.evaluate("document.getElementById('settings').elements.thinking.checked = true")
            self.ask(page, "Tell me of the sea.")
            page.locator("li.assistant summary").last.click()
            self.wait(page, "[...document.querySelectorAll('details .body')].at(-1).textContent.length > 500", 120)
            page.screenshot(path=folder / f"page-{scheme}-answering.png")
            page.press("#prompt", "Escape")
            self.finished(page)
            time.sleep(2.5)
            page.screenshot(path=folder / f"page-{scheme}.png")
        page = self.open(self.address, viewport={"width": 390, "height": 780})
        self.ask(page, "Good morning.")
        self.finished(page, 120_000)
        page.screenshot(path=folder / "page-phone.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("pivot")
    parser.add_argument("--screenshots")
    OPTIONS, rest = parser.parse_known_args()
    with sync_playwright() as playwright:
        # CI runs as root in a container, where Chromium's own sandbox cannot start.
        BROWSER = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        program = unittest.main(argv=[sys.argv[0], *rest], verbosity=2, exit=False)
        BROWSER.close()
    sys.exit(not program.result.wasSuccessful())
