"""How wait() ends when events or the broker are lost; integration/test_client_calls.py has the rest of the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import fileq
from fileq.brokers.memory import MemoryBroker
from fileq.brokers.notifications import Subscription
from fileq.brokers.types import Record, WorkerInfo
from fileq.client.broker_transport import BrokerTransport
from fileq.client.client import Client
from fileq.client.job_endings import JobEnding, JobEndings, ending_of
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import Job, decode
from fileq.core.settlement import bury, complete
from tests.support.trial_tasks import Number, double

CONFIG = config_from({"broker": "memory", "producer": {"scan_dir": "/data"}})


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker(CONFIG)
    broker.register({"w": WorkerInfo("host", 1, 0, "0", ("high", "low"))})
    return broker


@pytest.fixture
def client(broker: MemoryBroker) -> Client:
    return Client.over(BrokerTransport(broker, CONFIG))


def job_of(broker: MemoryBroker, id: str) -> Job:
    [record] = broker.records([id])
    assert record is not None
    return decode(record.raw)


def run_one(broker: MemoryBroker, *, result: bytes = b"", error: str = "") -> None:
    """Claims the next job and settles it."""
    [claim] = broker.settle_and_claim([], ["w"]).claims
    end = bury(claim, claim.raw, error=error) if error else complete(claim, result=result)
    broker.settle_and_claim([end], [])


def test_a_completed_job_whose_record_is_gone_has_an_expired_result(broker: MemoryBroker) -> None:
    source = _Source(broker, record=None, event=b"job:completed")
    with pytest.raises(fileq.ResultExpired):
        fileq.Handle("j", lambda: source).wait(5)  # type: ignore[arg-type, return-value]


def test_an_ended_job_is_noticed_although_every_event_is_lost(client: Client, broker: MemoryBroker) -> None:
    handle = client.enqueue(double, Number(1))
    clock = _Clock()

    def silence(timeout_s: float) -> None:
        clock.now_s += timeout_s
        if clock.now_s > 1 and broker.census().pending["low"]:
            run_one(broker, result=b'{"n":2}')

    source = _Source(broker, get=silence)
    endings = JobEndings(source, monotonic=clock)
    [ending] = endings.of([handle.id], timeout_s=60)
    assert ending.record is not None
    assert ending.record.result == b'{"n":2}'
    assert clock.now_s == 2.0, "the record is read again after two seconds"


def test_an_outage_during_a_wait_is_waited_out_and_reported_once(client: Client, broker: MemoryBroker) -> None:
    handle = client.enqueue(double, Number(1))
    run_one(broker, result=b"1")
    clock, said = _Clock(), list[str]()
    source = _Source(broker, outages=3)
    endings = JobEndings(source, report=said.append, monotonic=clock, sleep=clock.sleep)
    assert [ending.id for ending in endings.of([handle.id])] == [handle.id]
    assert said == ["away; trying again every 1s", "connected again"] * 3
    source = _Source(broker, outages=10**9)
    with pytest.raises(TimeoutError):
        list(JobEndings(source, monotonic=clock, sleep=clock.sleep).of([handle.id], timeout_s=30))


class _Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class _Source:
    """Records of a broker, and events as the test says."""

    def __init__(self, broker: MemoryBroker, *, get: Any = None, outages: int = 0, **answers: Any) -> None:
        self._broker = broker
        self._get = get
        self._outages = outages
        self._answers = answers
        self._is_first = True

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        if self._outages:
            self._outages -= 1
            raise BrokerUnavailable("away")
        if "record" in self._answers and not self._is_first:
            return [None]
        if "record" in self._answers:  # it still runs when the wait begins
            self._is_first = False
            handle = Client.over(BrokerTransport(self._broker, CONFIG)).enqueue(double, Number(1))
            return self._broker.records([handle.id])
        return self._broker.records(ids)

    def ending(self, *arguments: Any) -> JobEnding | None:
        return ending_of(self, *arguments)

    def subscribe(self) -> Subscription:
        return self

    def get(self, timeout_s: float) -> bytes | None:
        if self._get is not None:
            self._get(timeout_s)
            return None
        name = self._answers["event"].decode()
        return (
            f'{{"event":"{name}","job_id":"j","type":null,"priority":"","worker_id":"",'
            '"duration_ms":0,"error":"","retry_count":0}'
        ).encode()

    def close(self) -> None: ...
