"""The openai and anthropic clients against a real `pivot serve` of the embedded model.

usage: clients_test.py PIVOT [unittest arguments]; exit 77 where the clients are not installed.
"""

import concurrent.futures
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from server_process import ServerProcess

try:
    import anthropic
    import openai
except ImportError as missing:
    print(f"NEEDS PACKAGES: {missing.name} is not there; `./dev test` installs what tools/requirements-test.txt lists",
          file=sys.stderr)
    sys.exit(77)

BINARY = sys.argv.pop(1)
MODEL = "embedded"
QUESTION = "The secret code for Bethel is 4711. What is the secret code for Bethel?"
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Current weather for one city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]},
                                                    "days": {"type": "integer", "minimum": 1, "maximum": 7}},
                   "required": ["city", "days"], "additionalProperties": False}}}


def has_grammars():
    with urllib.request.urlopen(server.url + "/version") as reply:
        return json.load(reply).get("grammar") is not None


def setUpModule():
    global server
    server = ServerProcess(BINARY, "--max-model-len", "8192", "--api-key", "secret", "--heartbeat-seconds", "0.5",
                           "--header-timeout-seconds", "1", "--deterministic")


def tearDownModule():
    status = server.stop()
    assert status == 0, f"the server ended with status {status}"


def metrics():
    figures = {}
    with urllib.request.urlopen(server.url + "/metrics") as reply:
        for line in reply.read().decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                figures[name] = float(value)
    return figures


def total(name):
    """The sum of a metric's series."""
    return sum(value for key, value in metrics().items() if key == name or key.startswith(name + "{"))


def post(path, body, key="secret", headers=None):
    """Status and JSON of a raw POST; `body` as bytes or as what json.dumps takes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data=data, headers={
        "content-type": "application/json", "authorization": "Bearer " + key, **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class OpenAI(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0)

    def chat(self, **fields):
        fields.setdefault("messages", [{"role": "user", "content": QUESTION}])
        fields.setdefault("max_tokens", 24)
        return self.client.chat.completions.create(model=MODEL, **fields)

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual([m.id for m in models], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)

    def test_chat_streamed_and_not(self):
        whole = self.chat()
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        self.assertIn("471", whole.choices[0].message.content)
        text, usage, finish = "", None, None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            if chunk.usage:
                usage = chunk.usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(finish, "stop")
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(usage.prompt_tokens, whole.usage.prompt_tokens)

    def test_stop_strings(self):
        whole = self.chat().choices[0].message.content
        stop = whole[4:9]
        for stream in (False, True):
            reply = self.chat(stop=[stop, "never"], stream=stream)
            text = ("".join(c.choices[0].delta.content or "" for c in reply if c.choices)
                    if stream else reply.choices[0].message.content)
            self.assertEqual(text, whole[:whole.index(stop)])

    def test_choices_seeds_and_length(self):
        fields = dict(temperature=1.3, seed=5, n=2, max_tokens=6, extra_body={"ignore_eos": True})
        first, second = self.chat(**fields), self.chat(**fields)
        self.assertEqual([c.message.content for c in first.choices], [c.message.content for c in second.choices])
        self.assertEqual([c.finish_reason for c in first.choices], ["length"] * 2)
        self.assertEqual(first.usage.completion_tokens, 12)

    def test_logprobs(self):
        reply = self.chat(logprobs=True, top_logprobs=5, max_tokens=4)
        tokens = reply.choices[0].logprobs.content
        self.assertTrue(tokens)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 5)
            self.assertLessEqual(token.logprob, 0)
        self.assertEqual(b"".join(bytes(t.bytes) for t in tokens).decode(), reply.choices[0].message.content)

    def test_completions(self):
        reply = self.client.completions.create(model=MODEL, prompt=["In the beginning", "And"], max_tokens=5, logprobs=2)
        self.assertEqual([c.index for c in reply.choices], [0, 1])
        streamed = {0: "", 1: ""}
        for chunk in self.client.completions.create(model=MODEL, prompt=["In the beginning", "And"], max_tokens=5, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
        self.assertEqual([c.text for c in reply.choices], [streamed[0], streamed[1]])

    def test_reasoning(self):
        # The embedded model does not reason; it is enough that what it writes is told apart.
        reply = self.chat(extra_body={"chat_template_kwargs": {"thinking": True}}, max_tokens=10)
        message = reply.choices[0].message
        reasoning = getattr(message, "reasoning_content", None) or ""
        self.assertTrue(reasoning or message.content)
        self.assertGreater(reply.usage.completion_tokens_details.reasoning_tokens, 0)

    def test_forced_tool_call_streamed_and_not(self):
        if not has_grammars():
            self.skipTest("this build has no constrained decoding")
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            reply = self.chat(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, max_tokens=2000)
            call = reply.choices[0].message.tool_calls[0]
            self.assertEqual(reply.choices[0].finish_reason, "tool_calls")
            arguments = json.loads(call.function.arguments)
            self.assertEqual(call.function.name, "get_weather")
            self.assertIn(arguments["city"], ["Oslo", "Rome"])
            self.assertTrue(1 <= arguments["days"] <= 7)
            pieces, name, ids = "", None, []
            for chunk in self.chat(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, max_tokens=2000, stream=True):
                for delta in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
                    name = name or delta.function.name
                    pieces += delta.function.arguments or ""
                    ids += [delta.id] if delta.id else []
            self.assertEqual((name, json.loads(pieces)), ("get_weather", arguments))
            self.assertEqual(len(ids), 1)

    def test_next_turn_after_a_call_hits_the_cache(self):
        if not has_grammars():
            self.skipTest("this build has no constrained decoding")
        filler = " ".join(f"House {i} stands on the hill." for i in range(120))
        messages = [{"role": "user", "content": filler + " Weather?"}]
        reply = self.chat(messages=messages, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=2000)
        call = reply.choices[0].message.tool_calls[0]
        # As agents send it: arguments spelt anew.
        messages += [{"role": "assistant", "content": None, "tool_calls": [
                        {"id": call.id, "type": "function", "function": {
                            "name": call.function.name, "arguments": json.dumps(json.loads(call.function.arguments), indent=1)}}]},
                     {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        second = self.chat(messages=messages, tools=[WEATHER])
        self.assertGreaterEqual(second.usage.prompt_tokens_details.cached_tokens, reply.usage.prompt_tokens // 256 * 256)

    def test_json_schema(self):
        if not has_grammars():
            self.skipTest("this build has no constrained decoding")
        schema = {"type": "object", "properties": {"name": {"type": "string", "enum": ["a", "b"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
                  "required": ["name", "n"], "additionalProperties": False}
        reply = self.chat(max_tokens=2000, response_format={
            "type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": schema}})
        value = json.loads(reply.choices[0].message.content)
        self.assertEqual(set(value), {"name", "n"})
        self.assertIn(value["name"], ["a", "b"])
        reply = self.chat(max_tokens=30, extra_body={"guided_regex": "[0-9]{3}-[a-f]{2}"})
        self.assertRegex(reply.choices[0].message.content, r"^[0-9]{3}-[a-f]{2}$")
        reply = self.chat(max_tokens=30, extra_body={"guided_choice": ["yes", "no"]})
        self.assertIn(reply.choices[0].message.content, ["yes", "no"])

    def test_responses(self):
        reply = self.client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=24)
        self.assertEqual(reply.status, "completed")
        self.assertIn("471", reply.output_text)
        text, last = "", None
        for event in self.client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=24, stream=True):
            last = event
            if event.type == "response.output_text.delta":
                text += event.delta
        self.assertEqual(last.type, "response.completed")
        self.assertEqual(text, reply.output_text)
        self.assertEqual(last.response.output_text, reply.output_text)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0).models.list()
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(max_tokens=100000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}])
        self.assertIn("image", caught.exception.message)


class Anthropic(unittest.TestCase):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)

    def message(self, **fields):
        fields.setdefault("messages", [{"role": "user", "content": QUESTION}])
        fields.setdefault("max_tokens", 24)
        return self.client.messages.create(model=MODEL, **fields)

    def test_message_streamed_and_not(self):
        whole = self.message(system="Answer.")
        self.assertEqual(whole.stop_reason, "end_turn")
        self.assertIn("471", whole.content[0].text)
        with self.client.messages.stream(model=MODEL, max_tokens=24, system="Answer.",
                                         messages=[{"role": "user", "content": QUESTION}]) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        count = self.client.messages.count_tokens(model=MODEL, system="Answer.", messages=[{"role": "user", "content": QUESTION}])
        self.assertEqual(count.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens)

    def test_stop_sequence_and_length(self):
        whole = self.message().content[0].text
        reply = self.message(stop_sequences=[whole[4:9]])
        self.assertEqual((reply.stop_reason, reply.stop_sequence), ("stop_sequence", whole[4:9]))
        self.assertEqual(self.message(max_tokens=2).stop_reason, "max_tokens")

    def test_tool_use_round_trip(self):
        if not has_grammars():
            self.skipTest("this build has no constrained decoding")
        tool = {"name": "get_weather", "description": "Weather", "input_schema": WEATHER["function"]["parameters"]}
        choice = {"type": "any", "disable_parallel_tool_use": True}
        question = {"role": "user", "content": "Weather?"}
        reply = self.message(tools=[tool], tool_choice=choice, messages=[question], max_tokens=2000)
        self.assertEqual(reply.stop_reason, "tool_use")
        use = next(b for b in reply.content if b.type == "tool_use")
        self.assertIn(use.input["city"], ["Oslo", "Rome"])
        with self.client.messages.stream(model=MODEL, max_tokens=2000, tools=[tool], tool_choice=choice,
                                         messages=[question]) as stream:
            final = stream.get_final_message()
        self.assertEqual(next(b for b in final.content if b.type == "tool_use").input, use.input)
        second = self.message(tools=[tool], messages=[
            question, {"role": "assistant", "content": [b.model_dump() for b in reply.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"}]}])
        self.assertIn(second.stop_reason, ["end_turn", "max_tokens", "tool_use"])

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.message(messages=[])
        self.assertEqual(caught.exception.body["type"], "error")
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0).messages.count_tokens(
                model=MODEL, messages=[{"role": "user", "content": "x"}])


class Wire(unittest.TestCase):
    def test_malformed_bodies_are_refused_quickly_and_without_work(self):
        time.sleep(1)  # the engine's figures are at most half a second old when it is idle
        steps = total("pivot_steps_total")
        message = {"messages": [{"role": "user", "content": "x"}]}
        bodies = [b"", b"{", b"[]", b"\xff\xfe", b'{"messages": NaN}', b'{"messages": [{"role":"user","content":"\\ud800"}]}',
                  b'{"messages":' + b"[" * 50000, {"messages": 5}, {"messages": [{"role": "user", "content": "x" * 200000}], "n": "two"},
                  {**message, "stop": [""] }, {**message, "stop": ["x" * 5000]}, {**message, "temperature": "warm"},
                  {**message, "tools": [{"type": "function", "function": {"name": "a\nb"}}]}, {**message, "max_tokens": -5},
                  {**message, "seed": 10 ** 30}, {**message, "response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}]
        for body in bodies:
            began = time.monotonic()
            status, reply = post("/v1/chat/completions", body)
            self.assertEqual(status, 400, (body if isinstance(body, dict) else body[:60], reply))
            self.assertLess(len(json.dumps(reply)), 4096)
            self.assertEqual(set(reply["error"]), {"message", "type", "param", "code"})
            self.assertLess(time.monotonic() - began, 5)
        time.sleep(1)
        self.assertEqual(total("pivot_steps_total"), steps)
        self.assertEqual(post("/v1/chat/completions", {**message, "max_tokens": 1})[0], 200)

    def test_slow_client_gets_408(self):
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nho")
            self.assertIn(b" 408 ", connection.recv(4096))

    def test_abandoned_streams_are_cancelled_and_counted(self):
        before = metrics()
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps({"messages": [{"role": "user", "content": "Go on. " * 100}], "stream": True, "ignore_eos": True,
                           "max_tokens": 4000}).encode()
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n"
                                   b"content-length: %d\r\n\r\n" % len(body) + body)
                connection.recv(64)
        for _ in range(200):
            after = metrics()
            if after["pivot_requests_in_flight"] == 0:
                break
            time.sleep(0.05)
        self.assertEqual(after['pivot_requests_total{outcome="aborted",reason="client_gone"}'] -
                         before.get('pivot_requests_total{outcome="aborted",reason="client_gone"}', 0), 5)
        received = sum(v for k, v in after.items() if k.startswith("pivot_requests_received_total"))
        ended = sum(v for k, v in after.items() if k.startswith("pivot_requests_total"))
        self.assertEqual(received, ended)


class Concurrency(unittest.TestCase):
    def test_two_hundred_streams_equal_the_same_requests_alone(self):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0, timeout=300)

        def ask(i):
            began = time.monotonic()
            stream = client.chat.completions.create(
                model=MODEL, max_tokens=8 + i % 5, stream=True, seed=i, temperature=0.8 * (i % 2),
                messages=[{"role": "user", "content": f"The secret code for town {i % 20} is {1000 + i}. What is the secret code for town {i % 20}?"}])
            text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
            return text, time.monotonic() - began

        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            together = list(pool.map(ask, range(200)))
        for i in range(0, 200, 5):
            self.assertEqual(together[i][0], ask(i)[0], i)
        spans = sorted(span for _, span in together)
        print(f"200 streams: median {spans[100]:.2f} s, longest {spans[-1]:.2f} s", file=sys.stderr)


class Process(unittest.TestCase):
    def test_sigterm_finishes_what_runs(self):
        with ServerProcess(BINARY, "--max-model-len", "4096") as other:
            client = openai.OpenAI(base_url=other.url + "/v1", api_key="x", max_retries=0)
            stream = client.chat.completions.create(model=MODEL, max_tokens=40, stream=True, extra_body={"ignore_eos": True},
                                                    messages=[{"role": "user", "content": "Count."}])
            chunks = iter(stream)
            next(chunks)
            other.process.send_signal(signal.SIGTERM)
            finish = [c.choices[0].finish_reason for c in chunks if c.choices][-1]
            self.assertEqual(finish, "length")
            self.assertEqual(other.stop(), 0)

    def test_sends_what_a_service_manager_wants(self):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/notify"
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.bind(path)
                manager.settimeout(30)
                with ServerProcess(BINARY, "--max-model-len", "2048", environment={
                        "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "600000"}) as other:
                    seen = []
                    while "WATCHDOG=1" not in seen:
                        seen.append(manager.recv(4096).decode())
                    self.assertLess(seen.index("READY=1"), seen.index("WATCHDOG=1"))
                    self.assertTrue(seen[0].startswith("STATUS=loading"))
                    self.assertTrue(any(s.startswith("EXTEND_TIMEOUT_USEC=") for s in seen))
                    self.assertEqual(other.stop(), 0)
                    manager.settimeout(1)
                    try:
                        while True:
                            seen.append(manager.recv(4096).decode())
                    except TimeoutError:
                        pass
                    self.assertIn("STOPPING=1", seen)

    def test_tls_and_unix_socket(self):
        if shutil.which("openssl") is None:
            self.skipTest("no openssl program to make a certificate with")
        with tempfile.TemporaryDirectory() as folder:
            certificate, key, path = (folder + "/" + name for name in ("c.pem", "k.pem", "s.sock"))
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key, "-out",
                            certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                           check=True, capture_output=True)
            with ServerProcess(BINARY, "--max-model-len", "2048", "--ssl-certfile", certificate, "--ssl-keyfile", key,
                               "--unix-socket", path) as other:
                body = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 20, "stream": True}).encode()
                context = ssl.create_default_context(cafile=certificate)
                request = urllib.request.Request(other.url + "/v1/chat/completions", data=body)
                with urllib.request.urlopen(request, context=context, timeout=60) as reply:
                    secure = reply.read()
                self.assertTrue(other.url.startswith("https://"))
                self.assertIn(b"[DONE]", secure)
                with socket.socket(socket.AF_UNIX) as local:
                    local.settimeout(60)
                    local.connect(path)
                    local.sendall(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                    text = b""
                    while piece := local.recv(65536):
                        text += piece
                self.assertIn(b"[DONE]", text)
                self.assertEqual(other.stop(), 0)
                self.assertFalse(os.path.exists(path))

    def test_configuration_says_where_values_come_from(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('[engine]\nmax_num_seqs = 3\nmax-model-len = 2048\n[http]\nserved-model-name = ["a", "b"]\n')
            file.flush()
            with ServerProcess(BINARY, "--config", file.name, "--max-num-seqs", "2") as other:
                options = {line["name"]: line for line in other.lines() if line.get("event") == "option"}
                self.assertEqual((options["max-num-seqs"]["value"], options["max-num-seqs"]["origin"]), ("2", "flag"))
                self.assertEqual(options["max-model-len"]["value"], "2048")
                self.assertEqual(options["max-model-len"]["origin"], "file " + file.name)
                self.assertEqual(options["io-threads"]["origin"], "default")
                with urllib.request.urlopen(other.url + "/v1/models") as reply:
                    self.assertEqual([m["id"] for m in json.load(reply)["data"]], ["a", "b"])
                self.assertEqual(other.stop(), 0)
        self.assertFalse(os.path.exists(file.name))


if __name__ == "__main__":
    unittest.main(verbosity=2)
