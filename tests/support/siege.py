"""One client that does its worst to a server and its metrics port, without a key and with one that may only read, while
jobs run and probes ask for /healthz. The client is a process of its own; all its loops have an end."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fileq.core.api_key import Scope
from tests.support.api_client import ADMIN_KEY, ApiClient
from tests.support.program import REPOSITORY, environment
from tests.support.worker_setup import WorkerSetup

PROBE_EVERY_S = 0.25
PROBE_S = 20.0  # after it a probe counts as not answered
JOBS = 200  # that wait at least
STORED = 40  # jobs with large payloads, for the lists
API = "/api/v1"


class Figures(NamedTuple):
    """`slowest_s` are the slowest answers of server and worker, `wrong` are probes without a 200."""

    probes: int
    slowest_s: dict[str, float]
    wrong: list[str]
    jobs_per_s: float
    peak_mib: int
    log_kib: int
    sent: str = ""


class Besieged:
    """`fileq start`: producer, worker and server in one process."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._number = 0
        settings: dict[str, Any] = {"server__port": 0, "server__api_key": ADMIN_KEY, "server__upload_dir": ""}
        self.program = setup.worker(role="start", **settings)
        self.port = int(self.program.wait_for("server.opened")["url"].rpartition(":")[2])
        admin = ApiClient(self.port, ADMIN_KEY)
        self.read_key = admin.post("/keys", {"name": "besieger", "scopes": [Scope.READ]}).json["key"]
        for _ in range(STORED):
            admin.post("/jobs", {"type": "note", "delay": "10h", "payload": "x" * 1_000_000})

    def watch(self, is_over: Callable[[], bool], least_jobs: int = 0) -> Figures:
        """Probes and keeps jobs waiting, until it is over and so many jobs have been completed."""
        slowest, wrong, probes = {"server": 0.0, "worker": 0.0}, list[str](), 0
        began_s, before = time.monotonic(), self._completed()
        while not is_over() or self._completed() - before < least_jobs:
            for name, port in (("server", self.port), ("worker", self.program.port)):
                began_probe_s = time.monotonic()
                if (answer := probe(port)) != "200":
                    wrong.append(f"{name}: {answer}")
                slowest[name] = max(slowest[name], time.monotonic() - began_probe_s)
            probes += 1
            self._fill()
            time.sleep(PROBE_EVERY_S)
        rate = (self._completed() - before) / (time.monotonic() - began_s)
        status = Path(f"/proc/{self.program.process.pid}/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0])
        size = self.program.log_file.stat().st_size
        return Figures(probes, slowest, wrong, rate, peak >> 10, size >> 10)

    @contextlib.contextmanager
    def besieger(self, seconds: float, clients: int) -> Iterator[subprocess.Popen[str]]:
        words = [self.port, self.program.port, self.read_key, seconds, clients]
        command = [sys.executable, "-m", "tests.support.siege", *map(str, words)]
        with subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def _completed(self) -> int:
        return self._setup.census().counters.get("completed", 0)

    def _fill(self) -> None:
        if sum(self._setup.census().pending.values()) < JOBS:
            self._setup.enqueue("note", *(f"note-{self._number + n}" for n in range(JOBS)))
            self._number += JOBS


def probe(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        return "200" if answer.status == 200 else f"{answer.status} {answer.read()!r}"
    except OSError as error:
        return repr(error)
    finally:
        connection.close()


def besiege(setup: WorkerSetup, seconds: float, clients: int, *, quiet_s: float, least_jobs: int = 0) -> list[Figures]:
    """The figures before, and during it. `clients` is how many connections are held idle."""
    besieged = Besieged(setup)
    quiet_until_s = time.monotonic() + quiet_s
    quiet = besieged.watch(lambda: time.monotonic() > quiet_until_s)
    with besieged.besieger(seconds, clients) as process:
        found = besieged.watch(lambda: process.poll() is not None, least_jobs)
        assert process.stdout is not None
        sent = process.stdout.read().strip()
    assert besieged.program.process.poll() is None, "the program has ended"
    for line in besieged.program.logs():  # fails for a line that is no JSON, such as one of a traceback
        assert line["event"] not in ("request.failed", "loop.failed"), line
    return [quiet, found._replace(sent=sent)]


# the client


class Besieger:
    def __init__(self, port: int, metrics_port: int, key: str, seconds: float, clients: int) -> None:
        self._ports = port, metrics_port
        self._key = key
        self._ends_s = time.monotonic() + seconds
        self._clients = clients
        self.sent: dict[str, int] = {}

    def run(self) -> None:
        works = (
            *(self.idle, self.idle_metrics, self.slow_headers, self.endless_bodies, self.unread_answers, self.flood),
            *(self.lists, self.lists, self.lists, self.globs, self.streams, self.waits, self.long_bodies, self.odd),
        )
        threads = [threading.Thread(target=self._until_end, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _until_end(self, work: Callable[[], None]) -> None:
        while time.monotonic() < self._ends_s:
            with contextlib.suppress(OSError, http.client.HTTPException):
                work()
            self.sent[work.__name__] = self.sent.get(work.__name__, 0) + 1
            time.sleep(0.02)

    def _connect(self, sent: bytes = b"", which: int = 0) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self._ports[which]), 5)
        client.sendall(sent)
        return client

    def _head(self, method: str, path: str, *lines: str, has_key: bool = True) -> bytes:
        given = [f"X-API-Key: {self._key}"] if has_key else []
        return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *given, *lines, "", ""]).encode()

    def _hold(self, count: int, sent: bytes, drip: bytes = b"", which: int = 0) -> None:
        """Opens so many connections, then sends a byte on each once a second until they are closed."""
        held = list[socket.socket]()
        try:
            while len(held) < count and time.monotonic() < self._ends_s:
                held.append(self._connect(sent, which))
            for _ in range(12):
                time.sleep(max(0.0, min(1.0, self._ends_s - time.monotonic())))
                for client in held if drip else ():
                    with contextlib.suppress(OSError):
                        client.send(drip)
        finally:
            for client in held:
                client.close()

    def _ask(self, sent: bytes) -> bytes:
        with contextlib.closing(self._connect(sent)) as client:
            client.settimeout(35)
            return client.recv(1 << 16)

    def idle(self) -> None:
        self._hold(self._clients, b"")

    def idle_metrics(self) -> None:
        self._hold(self._clients // 4, b"G", which=1)

    def slow_headers(self) -> None:
        self._hold(self._clients // 10, b"GET /healthz HTTP/1.1\r\nX: ", b"x")

    def endless_bodies(self) -> None:
        self._hold(self._clients // 20, self._head("POST", "/login", "Content-Length: 4000", has_key=False), b"x")
        self._hold(self._clients // 20, self._head("POST", f"{API}/jobs/bulk", "Content-Length: 16000000"), b"x" * 999)

    def unread_answers(self) -> None:
        self._hold(self._clients // 20, self._head("GET", f"{API}/openapi.json") * 20)

    def streams(self) -> None:
        self._hold(self._clients // 4, self._head("GET", f"{API}/events"))

    def waits(self) -> None:
        found = self._ask(self._head("GET", f"{API}/jobs?status=scheduled&limit=1"))
        id = found.partition(b'"id":"')[2].partition(b'"')[0].decode()
        self._hold(self._clients // 4, self._head("GET", f"{API}/jobs/{id}/wait?timeout=60"))

    def flood(self) -> None:
        with contextlib.closing(self._connect()) as client:
            client.settimeout(5)
            for _ in range(200):
                client.sendall(self._head("GET", "/nothing-here", has_key=False))
                client.recv(1 << 16)

    def lists(self) -> None:
        self._ask(self._head("GET", f"{API}/jobs?limit=1000"))
        self._ask(self._head("GET", f"{API}/jobs?limit=1000&q=nothing-has-this-text"))

    def globs(self) -> None:
        self._ask(self._head("GET", f"{API}/jobs?match={'**/' * 8}x"))

    def long_bodies(self) -> None:
        body = b"{" + b",".join(b'"%d":1' % n for n in range(80_000)) + b"}"
        lines = "Content-Type: application/json", f"Content-Length: {len(body)}"
        self._ask(self._head("POST", f"{API}/jobs", *lines) + body)

    def odd(self) -> None:
        self._ask(self._head("POST", f"{API}/jobs", "Content-Length: 3", "Transfer-Encoding: chunked", has_key=False))
        self._ask(b"\x00" * 1000)
        self._ask(b"GET /" + b"x" * 100_000)


def main() -> None:
    port, metrics_port, key, seconds, clients = sys.argv[1:]
    besieger = Besieger(int(port), int(metrics_port), key, float(seconds), int(clients))
    besieger.run()
    print(", ".join(f"{name} {count}" for name, count in sorted(besieger.sent.items())))


if __name__ == "__main__":
    main()
