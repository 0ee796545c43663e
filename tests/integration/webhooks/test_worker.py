"""Receivers that a worker must not trust: one real worker, real sockets, the real time limit.

127.0.0.2 stands for the internet, where receivers are; 127.0.0.1 stands for the inside, which no delivery may reach.
The broker plays no part in this, so it is SQLite only; test_webhooks.py has receivers that fail on each broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fileq.commands import webhooks
from fileq.commands.webhooks import DeliverySummary
from fileq.config import Config, config_from
from fileq.core.job import State
from fileq.core.webhook import TIMEOUT_S, WebhookFilter
from tests.support.program import Program
from tests.support.servers.tls import make_certificates
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import Received, Receiver, Reply, open_receiver
from tests.support.worker_setup import QUICK, WorkerSetup, open_worker_setup

OUTSIDE, INSIDE = "127.0.0.2", "127.0.0.1"
# Named in `imports`: the worker asks this resolver. A name that rebinds leads outside once, and then inside.
RESOLVER = f"""
import socket

system = socket.getaddrinfo
answers = {{
    "rebinds.test": ["{OUTSIDE}"],
    "rebinds-later.test": ["{INSIDE}"],
    "localhost": ["{OUTSIDE}"] * 99,
    "other.test": ["{OUTSIDE}"] * 99,
}}


def getaddrinfo(host, *arguments, **options):
    if host in answers:
        host = answers[host].pop(0) if answers[host] else "{INSIDE}"
    return system(host, *arguments, **options)


socket.getaddrinfo = getaddrinfo
"""


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[WorkerSetup]:
    with open_worker_setup(tmp_path, {"sqlite.path": str(tmp_path / "fileq.db")}) as setup:
        yield setup


class Outside:
    """The receivers, what the worker is allowed to call, and the same ports inside."""

    def __init__(self, setup: WorkerSetup, stack: contextlib.ExitStack) -> None:
        def opened(name: str = "", host: str = OUTSIDE, port: int = 0) -> Receiver:
            made = make_certificates(setup.directory / name) if name else None
            if name == "good":
                self.ca_file = made.ca_file if made else ""
            return stack.enter_context(
                open_receiver((made.server_cert_file, made.server_key_file) if made else None, host, port)
            )

        self._setup = setup
        self.plain, self.trusted, self.unknown = opened(), opened("good"), opened("other")
        self.ports = [self.plain.port, self.trusted.port, self.unknown.port]
        self.inside = [opened(host=INSIDE, port=port) for port in self.ports]
        self.plain.answer = lambda received: (
            self.plain.hang(received) if received.path == "/hangs" else answer(received)
        )
        allowed = {"allow_http": True, "allow_networks": [f"{OUTSIDE}/32"], "allow_ports": self.ports}
        self.config: Config = replace(setup.config, webhooks=config_from({"webhooks": allowed}).webhooks)
        for name in ("hangs", "moved", "gone", "down"):
            self._add(name, f"http://{OUTSIDE}:{self.plain.port}/{name}")
        self._add("rebinds", f"http://rebinds.test:{self.plain.port}/rebinds")
        self._add("rebinds-later", f"http://rebinds-later.test:{self.plain.port}/later")
        self._add("tls", f"https://localhost:{self.trusted.port}/tls")
        self._add("wrong-name", f"https://other.test:{self.trusted.port}/tls")
        self._add("unknown", f"https://localhost:{self.unknown.port}/tls")

    def _add(self, name: str, url: str) -> None:
        webhooks.add(self._setup.broker, self.config, name, url, ["job.completed"], WebhookFilter(type="note"))

    def worker(self) -> Program:
        (self._setup.directory / "own_resolver.py").write_text(RESOLVER)
        return self._setup.worker(
            imports=f"[{QUICK['imports']}, own_resolver]",
            count=1,
            variables={"SSL_CERT_FILE": self.ca_file},
            webhooks__allow_http="true",
            webhooks__allow_networks=f"[{OUTSIDE}/32]",
            webhooks__allow_ports=self.ports,
        )

    def delivery(self, name: str) -> DeliverySummary:
        """The delivery of this webhook, once it was tried."""

        def tried() -> DeliverySummary | None:
            found = webhooks.deliveries(self._setup.broker, self.config, name, 10).deliveries
            return next((one for one in found if one.status not in ("pending", "running")), None)

        return wait_until(tried, TIMEOUT_S + 15, name)


def answer(received: Received) -> Reply:
    status = {"/gone": 410, "/down": 503}.get(received.path, 204)
    if received.path == "/moved":
        return Reply(302, {"Location": f"http://{INSIDE}:{received.headers['host'].rpartition(':')[2]}/inside"})
    return Reply(status)


def test_a_worker_calls_only_what_it_has_checked_and_gives_up_after_20_seconds(setup: WorkerSetup) -> None:
    with contextlib.ExitStack() as stack:
        outside = Outside(setup, stack)
        plain, trusted = outside.plain, outside.trusted
        setup.enqueue("note", "first")
        worker = outside.worker()
        wait_until(lambda: plain.running == 1, 20, "one receiver hangs")

        # The name leads inside after its first use: the address that was checked is called.
        assert outside.delivery("rebinds").status == "completed"
        [rebound] = [one for one in plain.received if one.path == "/rebinds"]
        assert rebound.headers["host"] == f"rebinds.test:{plain.port}"
        refused = f"rebinds-later.test resolves to an address that is not allowed: {INSIDE} is not a public address"
        assert outside.delivery("rebinds-later").error == f"not sent: {refused}"

        # The certificate is that of the name, not of the address that is called.
        assert outside.delivery("tls").status == "completed"
        [secured] = trusted.received
        assert secured.headers["host"] == f"localhost:{trusted.port}"
        assert "the certificate of other.test is not valid" in outside.delivery("wrong-name").error
        assert "the certificate of localhost is not valid" in outside.delivery("unknown").error
        assert outside.unknown.received == []

        assert outside.delivery("moved").error == "the receiver answered 302"
        assert outside.delivery("down").error == "the receiver answered 503"
        assert outside.delivery("gone").status == "dead"
        assert worker.wait_for("webhook.disabled")["webhook"] == "gone"
        assert worker.metric("webhook_deliveries_total") == 2

        # A receiver that hangs takes no slot; the worker gives it up.
        setup.enqueue("work", "meanwhile")
        setup.wait_for(State.COMPLETED, ["meanwhile"])
        assert plain.running == 1, "it still hangs"
        assert outside.delivery("hangs").error == f"not sent: {OUTSIDE} did not answer within 20s"
        assert [one.received for one in outside.inside] == [[], [], []]
        assert worker.stop() == 0
