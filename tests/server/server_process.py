"""A `pivot serve` process for tests and tools: starts it on a free port, waits until it listens, ends it."""

import json
import os
import signal
import subprocess
import tempfile


class ServerProcess:
    def __init__(self, binary, *flags, model="embedded", environment=None):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="pivot-serve-", suffix=".log")
        environment = {**{k: v for k, v in os.environ.items() if not k.startswith("PIVOT_")}, **(environment or {})}
        self.process = subprocess.Popen(
            [binary, "serve", model, "--port", "0", "--log-format", "json", *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
        self.addresses = []
        for line in self.process.stderr:
            self.log.write(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "listening":
                self.addresses.append(event["address"])
                if event["address"].startswith("http"):
                    break
        if not self.addresses:
            self.log.seek(0)
            raise RuntimeError("the server did not start:\n" + self.log.read())
        # The rest of the log goes to the file, so that the pipe never fills.
        self.drainer = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=self.log)

    @property
    def url(self):
        return next(a for a in self.addresses if a.startswith("http"))

    @property
    def pid(self):
        return self.process.pid

    def lines(self):
        self.log.flush()
        with open(self.log.name) as log:
            return [json.loads(line) for line in log if line.startswith("{")]

    def stop(self, number=signal.SIGTERM, wait=60):
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(wait)
        self.drainer.wait(10)
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.drainer.wait(10)
        self.process.stderr.close()
        self.log.close()
