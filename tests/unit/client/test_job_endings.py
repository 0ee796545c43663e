"""How a wait notices the end of its job: by events, and without them. The clock is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest

import fileq
from fileq.brokers.memory import MemoryBroker
from fileq.brokers.protocol import Subscription
from fileq.brokers.types import Entry, Record, WorkerInfo
from fileq.client import event_stream, job_endings
from fileq.client.broker_transport import SharedReads
from fileq.client.job_endings import JobEndings
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import State, typed_job
from fileq.core.settlement import complete
from tests.support.waiting import wait_until

CONFIG = config_from({"broker": "memory"})
NOTICED_S = 0.05  # after its end, on an idle machine


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Source:
    """Records of a broker, and events as the test says: none, unless `events` has some. Each call takes 1 ms."""

    def __init__(self, clock: Clock) -> None:
        self.broker = MemoryBroker(CONFIG)
        self.broker.register({"w": WorkerInfo("host", 1, 0, "0", ("high", "low"))})
        self.broker.enqueue([Entry(typed_job("t", None, priority="low", now=datetime.now(UTC), id="j"), "low")])
        self.clock = clock
        self.events: list[bytes] = []
        self.outages = 0
        self.calls: list[str] = []
        self.is_gone = self.is_unreachable = False
        self.at: list[tuple[float, Callable[[], None]]] = []  # what happens when

    def records(self, ids: Sequence[str]) -> list[Record | None]:
        self._called("records")
        return [None] * len(ids) if self.is_gone else self.broker.records(ids)

    def states(self, ids: Sequence[str]) -> list[State | None]:
        self._called("states")
        return [None] * len(ids) if self.is_gone else self.broker.states(ids)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self._pass(0.001)
        if self.outages:
            self.outages -= 1
            raise BrokerUnavailable("away")

    def subscribe(self) -> Subscription:
        self.calls.append("subscribe")
        if self.is_unreachable:
            raise BrokerUnavailable("away")
        return self

    def get(self, timeout_s: float) -> bytes | None:
        if not self.events:
            self._pass(timeout_s)
        return self.events.pop(0) if self.events else None

    def _pass(self, seconds: float) -> None:
        self.clock.now_s += seconds
        while self.at and self.at[0][0] <= self.clock.now_s:
            self.at.pop(0)[1]()

    def close(self) -> None: ...

    def end(self) -> None:
        [claim] = self.broker.settle_and_claim([], ["w"]).claims
        self.broker.settle_and_claim([complete(claim, result=b"2")], [])

    def vanish(self) -> None:
        self.is_gone = True


def event(name: str, id: str = "j") -> bytes:
    facts = {"type": None, "priority": "", "worker_id": "", "duration_ms": 0, "error": "", "retry_count": 0}
    return msgspec.json.encode({"event": name, "job_id": id, **facts})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(clock: Clock) -> Source:
    return Source(clock)


def endings(source: Source, **options: object) -> JobEndings:
    return JobEndings(source, monotonic=source.clock, sleep=source.clock.sleep, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("after_s", [0.0005, 0.0825, 1.2345, 29.9])
def test_an_end_is_noticed_within_50_ms_although_every_event_is_lost(
    source: Source, clock: Clock, after_s: float
) -> None:
    ends_s = clock.now_s + after_s
    source.at = [(ends_s, source.end)]
    [ending] = endings(source).of(["j"], timeout_s=60)
    assert ending.result == b"2"
    assert clock.now_s - ends_s <= NOTICED_S


def test_a_long_wait_reads_every_two_seconds(source: Source, clock: Clock) -> None:
    begun_s = clock.now_s
    source.at = [(begun_s + 100.0, source.end)]
    [_] = endings(source).of(["j"])
    assert 0 <= clock.now_s - begun_s - 100.0 <= job_endings.LONGEST_POLL_S
    often = job_endings.POLLED_OFTEN_S / job_endings.POLL_S
    assert source.calls.count("states") <= often + 70 / job_endings.LONGEST_POLL_S + 2
    assert source.calls.count("records") == 2, "the whole record only at the beginning and at the end"


def test_a_slow_broker_is_asked_a_tenth_of_the_time(source: Source, clock: Clock) -> None:
    read = source.states

    def slow(ids: Sequence[str]) -> list[State | None]:
        clock.sleep(0.1)
        return read(ids)

    source.states = slow  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        list(endings(source).of(["j"], timeout_s=20))
    assert source.calls.count("states") <= 20


def test_a_subscription_that_breaks_is_renewed_and_the_job_read_at_once(source: Source, clock: Clock) -> None:
    """Also late, when the states are read seldom."""

    def broken(timeout_s: float) -> bytes | None:
        if clock.now_s < breaks_s:
            return get(timeout_s)
        source.get = get  # type: ignore[method-assign]
        source.end()
        raise BrokerUnavailable("the connection is lost")

    breaks_s, said = clock.now_s + 40, list[str]()
    get, source.get = source.get, broken  # type: ignore[method-assign]
    source.at = [(breaks_s, source.calls.clear)]
    [ending] = endings(source, report=said.append).of(["j"])
    assert ending.job.status == "completed"
    assert source.calls[-3:] == ["subscribe", "states", "records"]
    assert clock.now_s - breaks_s <= NOTICED_S + event_stream.SLICE_S, "one wait for an event lasts so long"
    assert said[-1] == "connected again"


def test_an_outage_is_waited_out_and_reported_once(source: Source, clock: Clock) -> None:
    said: list[str] = []
    source.end()
    source.outages = 3
    begun_s = clock.now_s
    assert [ending.id for ending in endings(source, report=said.append).of(["j"])] == ["j"]
    assert said == ["away; trying again every 1s", "connected again"] * 3
    assert clock.now_s - begun_s >= 2, "only the first try comes at once"
    source.outages = 10**9
    with pytest.raises(TimeoutError):
        list(endings(source).of(["j"], timeout_s=30))


def test_a_stop_in_an_outage_is_noticed_within_half_a_second(source: Source, clock: Clock) -> None:
    waiting, stops_s = endings(source), clock.now_s + 5.2
    source.outages, source.is_unreachable = 10**9, True
    assert list(waiting.of(["j"], is_stopped=lambda: clock.now_s >= stops_s)) == []
    assert clock.now_s - stops_s <= event_stream.SLICE_S


def test_an_outage_that_began_before_the_wait_is_waited_out_too(source: Source, clock: Clock) -> None:
    source.is_unreachable = True
    source.outages = 3
    with pytest.raises(BrokerUnavailable):
        endings(source)  # as for a command, which then enqueues nothing
    waiting = endings(source, is_patient=True)
    with pytest.raises(TimeoutError):
        list(waiting.of(["j"], timeout_s=5))
    waiting = endings(source, is_patient=True)
    clock.sleep(5)
    source.end()
    source.is_unreachable = False
    assert [ending.id for ending in waiting.of(["j"])] == ["j"]


def test_an_event_says_how_a_job_ended_whose_record_is_gone(source: Source, clock: Clock) -> None:
    """The state is read before the event arrives, which is behind others."""

    def cancelled() -> None:
        source.vanish()
        source.at = [(clock.now_s + 0.002, lambda: source.events.extend(news))]

    news = [event("job:completed", "other"), event("job:created"), event("job:cancelled")]
    source.at = [(clock.now_s + 0.0405, cancelled)]  # in the call at 40 ms
    [ending] = endings(source).of(["j"])
    assert ending.job.status == "cancelled"


def test_a_record_that_is_gone_without_an_event_is_the_end_too(source: Source, clock: Clock) -> None:
    ends_s = clock.now_s + 1
    source.at = [(ends_s, source.vanish)]
    with pytest.raises(fileq.ResultExpired):
        Waiting(source).wait(5)
    assert clock.now_s - ends_s <= NOTICED_S


def test_a_completed_job_whose_record_is_gone_has_an_expired_result(source: Source, clock: Clock) -> None:
    source.at = [(clock.now_s + 0.001, lambda: (source.vanish(), source.events.append(event("job:completed"))))]  # type: ignore[func-returns-value]
    with pytest.raises(fileq.ResultExpired):
        Waiting(source).wait(5)


class Waiting(fileq.Handle[object]):
    """A handle whose wait has the clock of the test."""

    def __init__(self, source: Source) -> None:
        super().__init__("j", lambda: source)  # type: ignore[arg-type, return-value]
        self._source = source

    def wait(self, timeout: float | None = None) -> object:
        [ending] = endings(self._source).of(["j"], timeout)
        return self._result(ending)


def test_what_keeps_a_job_from_running_is_looked_for_after_two_seconds_and_then_every_ten(
    source: Source, clock: Clock
) -> None:
    begun_s, looks = clock.now_s, list[float]()
    waiting = endings(source, on_recheck=lambda records: looks.append(clock.now_s - begun_s), recheck_s=10.0)
    with pytest.raises(TimeoutError):
        list(waiting.of(["j"], timeout_s=25))
    assert [round(look_s) for look_s in looks] == [2, 12, 22]


# many waits of one process


def test_waits_that_ask_at_the_same_time_share_a_call() -> None:
    asked: list[list[str]] = []
    is_released = threading.Event()

    def read(ids: Sequence[str]) -> list[State | None]:
        asked.append(sorted(ids))
        if len(asked) == 1:
            is_released.wait(10)
        return [State.PENDING if id != "none" else None for id in ids]

    reads = SharedReads(read)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(reads.states, ["a"])
        wait_until(lambda: asked)
        others = [pool.submit(reads.states, [f"b{n}", "none"]) for n in range(10)]
        wait_until(lambda: len(reads._next.ids) == 11)
        is_released.set()
        assert first.result(5) == [State.PENDING]
        assert [one.result(5) for one in others] == [[State.PENDING, None]] * 10
    assert asked == [["a"], sorted(["none", *(f"b{n}" for n in range(10))])]


def test_an_answer_was_read_after_it_was_asked_for() -> None:
    """A job ends while another thread reads: who asks then is answered by the next call."""
    states = {"a": State.RUNNING}
    is_reading, is_released = threading.Event(), threading.Event()

    def read(ids: Sequence[str]) -> list[State | None]:
        found: list[State | None] = [states[id] for id in ids]
        if not is_released.is_set():
            is_reading.set()
            is_released.wait(10)
        return found

    reads = SharedReads(read)
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(reads.states, ["a"])
        is_reading.wait(10)
        states["a"] = State.COMPLETED
        late = pool.submit(reads.states, ["a"])
        wait_until(lambda: reads._next.ids)
        is_released.set()
        assert (early.result(5), late.result(5)) == ([State.RUNNING], [State.COMPLETED])


def test_a_call_that_fails_fails_for_all_that_share_it_and_for_no_later_one() -> None:
    asked: list[list[str]] = []
    is_released = threading.Event()

    def read(ids: Sequence[str]) -> list[State | None]:
        asked.append(sorted(ids))
        if len(asked) == 1:
            is_released.wait(10)
        if len(asked) == 2:
            raise BrokerUnavailable("away")
        return [State.DEAD] * len(ids)

    reads = SharedReads(read)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(reads.states, ["a"])
        wait_until(lambda: asked)
        others = [pool.submit(reads.states, [id]) for id in ("b", "c")]
        wait_until(lambda: len(reads._next.ids) == 2)
        is_released.set()
        assert first.result(5) == [State.DEAD]
        assert [type(one.exception(5)) for one in others] == [BrokerUnavailable] * 2
    assert reads.states(["b"]) == [State.DEAD]
    assert asked == [["a"], ["b", "c"], ["b"]]
