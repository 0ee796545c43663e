"""The broker's numbers: one look for all who ask, kept for a moment, and nobody waits for a broker that is silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Census, Entry, WorkerInfo
from fileq.config import config_from
from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.job import encode, typed_job
from fileq.core.settlement import complete, retry
from fileq.observe.depths import FAILED_S, FRESH_S, SILENT_S, DepthGauge, read_depths
from tests.support.clocks import ManualClocks
from tests.support.sqlite_store import push_raw
from tests.support.waiting import wait_until

QUEUES = ("high", "low")
NOW_MS = 1_800_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)
INFO = WorkerInfo("host", 1, 0, "0", QUEUES)


class HealthSource(MemoryBroker):
    """Counts looks; holds them up, or fails them, when told to."""

    looks = 0
    error: Exception | None = None

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms
        self.may_answer = threading.Event()
        self.may_answer.set()
        super().__init__(config_from({"broker": "memory"}), clock=lambda: self.now_ms)

    def census(self, *, sweep: bool = False) -> Census:
        self.looks += 1
        assert self.may_answer.wait(20)
        if self.error is not None:
            raise self.error
        return super().census(sweep=sweep)


@pytest.fixture
def broker() -> Iterator[HealthSource]:
    broker = HealthSource()
    yield broker
    broker.may_answer.set()


def test_a_look_serves_everybody_until_it_is_out_of_date(broker: HealthSource) -> None:
    hands = ManualClocks()
    gauge = DepthGauge(broker, QUEUES, monotonic=hands.monotonic)
    for _ in range(5):
        assert gauge.read() is not None
    hands.advance(FRESH_S - 0.1)
    gauge.read()
    assert broker.looks == 1
    hands.advance(0.1)
    gauge.read()
    assert broker.looks == 2


def test_those_who_ask_at_the_same_time_share_one_look(broker: HealthSource) -> None:
    broker.may_answer.clear()
    gauge = DepthGauge(broker, QUEUES, monotonic=ManualClocks().monotonic)  # time stands still: all of them are patient
    readings: list[object] = []
    threads = [threading.Thread(target=lambda: readings.append(gauge.read())) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: broker.looks)
    broker.may_answer.set()
    for thread in threads:
        thread.join(10)
    assert broker.looks == 1
    assert len(readings) == 8


def test_nobody_waits_for_the_end_of_a_look_at_a_silent_broker(broker: HealthSource) -> None:
    broker.may_answer.clear()
    gauge = DepthGauge(broker, QUEUES)
    for _ in range(100):  # only the first of them is patient
        assert gauge.read() is None
    assert broker.looks == 1
    broker.may_answer.set()
    wait_until(lambda: gauge.read() is not None)


def test_a_silent_broker_is_a_problem_after_a_moment_and_until_it_answers(broker: HealthSource) -> None:
    hands = ManualClocks()
    broker.may_answer.clear()
    gauge = DepthGauge(broker, QUEUES, monotonic=hands.monotonic)
    assert gauge.problem() == ""
    hands.advance(SILENT_S)
    assert gauge.problem() == "the broker has not answered for 1s"
    hands.advance(5)
    assert gauge.problem() == "the broker has not answered for 6s"
    broker.may_answer.set()
    wait_until(lambda: gauge.problem() == "")


def test_a_broker_that_is_away_is_a_problem_and_is_asked_again_soon(broker: HealthSource) -> None:
    hands = ManualClocks()
    broker.error = BrokerUnavailable("Redis at h:1 is unavailable: refused")
    gauge = DepthGauge(broker, QUEUES, monotonic=hands.monotonic)
    assert gauge.read() is None
    assert gauge.problem() == "Redis at h:1 is unavailable: refused"
    hands.advance(FAILED_S)
    broker.may_answer.clear()
    assert gauge.problem() == "Redis at h:1 is unavailable: refused", "a new read is still in progress"
    broker.error = None
    broker.may_answer.set()
    assert gauge.read() is not None
    assert gauge.problem() == ""


@pytest.mark.parametrize("error", [BrokerError("NOPERM"), RuntimeError("closed")])
def test_a_broker_that_refuses_the_look_is_no_reason_to_be_unready(broker: HealthSource, error: Exception) -> None:
    broker.error = error
    gauge = DepthGauge(broker, QUEUES, monotonic=ManualClocks().monotonic)
    assert gauge.read() is None
    assert gauge.problem() == ""


# ages


def push(broker: HealthSource, id: str, *, age_s: float, queue: str = "low") -> None:
    job = typed_job("t", None, priority=queue, now=NOW - timedelta(seconds=age_s), id=id)
    broker.enqueue([Entry(job, queue)])


def test_every_place_has_its_length_and_every_queue_the_age_of_its_next_job(broker: HealthSource) -> None:
    push(broker, "first", age_s=30)
    push(broker, "second", age_s=20)
    broker.register({"slot": INFO})
    depths = read_depths(broker, QUEUES)
    assert depths.lengths == {"high": 0, "low": 2, "scheduled": 0, "dead_letter": 0, "processing": 0}
    assert depths.ages_s == {"high": 0.0, "low": 30.0}
    [claim] = broker.settle_and_claim([], ["slot"]).claims
    depths = read_depths(broker, QUEUES)
    assert (depths.lengths["processing"], depths.ages_s["low"]) == (1, 20.0)
    broker.settle_and_claim([complete(claim)], [])
    assert read_depths(broker, QUEUES).lengths["processing"] == 0


def test_a_job_that_was_tried_is_as_old_as_its_last_attempt(broker: HealthSource) -> None:
    push(broker, "job", age_s=3600)
    broker.register({"slot": INFO})
    [claim] = broker.settle_and_claim([], ["slot"]).claims
    assert claim.job is not None
    again = encode(claim.job.but(retries=1))
    broker.settle_and_claim([retry(claim, again, delay_ms=500, error="e")], [])
    broker.now_ms += 4_000
    assert broker.promote().count == 1
    assert read_depths(broker, QUEUES).ages_s["low"] == 4.0


def test_a_job_that_was_to_wait_is_as_old_as_its_due_time(broker: HealthSource) -> None:
    job = typed_job("t", None, priority="low", now=NOW - timedelta(hours=1), id="job")
    broker.enqueue([Entry(job.but(process_at=(NOW - timedelta(seconds=5)).isoformat()), "low")])
    assert read_depths(broker, QUEUES).ages_s["low"] == 5.0


def test_bytes_that_are_no_job_and_clocks_that_are_wrong_have_no_age(broker: HealthSource) -> None:
    push_raw(broker, "low", b"nonsense")
    push(broker, "from-the-future", age_s=-60, queue="high")
    assert read_depths(broker, QUEUES).ages_s == {"high": 0.0, "low": 0.0}
