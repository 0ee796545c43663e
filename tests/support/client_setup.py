"""A client of a memory broker, once on the broker itself and once through a server, for tests that run on both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import WorkerInfo
from fileq.client.broker_transport import BrokerTransport
from fileq.client.client import Client
from fileq.config import config_from
from fileq.core.job import Job, decode
from fileq.core.settlement import bury, complete
from tests.support.api_client import ADMIN_KEY, served_broker

TRANSPORTS = ("direct", "http")


def living_broker() -> MemoryBroker:
    """With a worker that claims from both queues."""
    broker = MemoryBroker(config_from({"broker": "memory"}))
    broker.register({"w": WorkerInfo("host", 1, 0, "0", ("high", "low"))})
    return broker


@contextmanager
def client_over(transport: str, broker: MemoryBroker, directory: Path) -> Iterator[Client]:
    server = {"port": 0, "api_key": ADMIN_KEY, "rate_limit": "100000/s"}
    config = config_from({"broker": "memory", "producer": {"scan_dir": str(directory)}, "server": server})
    if transport == "direct":
        yield Client.over(BrokerTransport(broker, config))
        return
    with served_broker(config, broker) as port, Client(f"http://127.0.0.1:{port}", key=ADMIN_KEY) as client:
        yield client


def job_of(broker: MemoryBroker, id: str) -> Job:
    [record] = broker.records([id])
    assert record is not None
    return decode(record.raw)


def run_one(broker: MemoryBroker, *, result: bytes = b"", error: str = "") -> None:
    """Claims the next job and settles it."""
    [claim] = broker.settle_and_claim([], ["w"]).claims
    end = bury(claim, claim.raw, error=error) if error else complete(claim, result=result)
    broker.settle_and_claim([end], [])
