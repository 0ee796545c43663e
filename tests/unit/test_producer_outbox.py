"""From a settled file to a job: priorities, batches, the rate limit, backpressure, outages."""

from collections import Counter

import pytest

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Enqueued
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import decode
from fileq.producer import outbox as module
from fileq.producer.outbox import STALE_S, Outbox
from fileq.producer.scan import Found
from fileq.testing.conformance.harness import FakeClock
from tests.support.clocks import ManualClocks, RecordedEvents


def file(name: str | bytes, size: int = 3) -> Found:
    raw = name if isinstance(name, bytes) else name.encode()
    return Found(b"/d/" + raw, size, 100, 7, 100)


class Box:
    """An outbox on the memory broker, with every clock in the test's hands."""

    def __init__(self, **producer: object) -> None:
        self.hands = ManualClocks()
        self.clock = FakeClock()
        config = config_from({"broker": "memory", "producer": producer})
        self.broker = MemoryBroker(config, clock=self.clock)
        self.disk: dict[bytes, Found] = {}
        self.changed: list[Found] = []
        self.tally: Counter[str] = Counter()
        self.told = RecordedEvents()
        self.calls: list[tuple[int, int]] = []
        self.is_away = False
        self.loses_reply = False
        self.outbox = Outbox(
            config,
            self,  # type: ignore[arg-type]
            self.broker,
            look=self.disk.get,
            changed=self.changed.append,
            tally=self.tally,
            emit=self.told,
            monotonic=self.hands.monotonic,
        )

    def enqueue(self, entries, *, limit: int = 0) -> Enqueued:
        self.calls.append((len(entries), limit))
        if self.is_away:
            raise BrokerUnavailable("away")
        answer = self.broker.enqueue(entries, limit=limit)
        if self.loses_reply:
            raise BrokerUnavailable("no answer")
        return answer

    def put(self, *files: Found) -> None:
        for found in files:
            self.disk[found.path] = found
            self.outbox.put(found, "ext4:/dev/vda")

    def advance(self, seconds: float) -> None:
        self.hands.advance(seconds)
        self.clock.ms += round(seconds * 1000)

    def jobs(self, queue: str) -> list[str]:
        return [decode(raw).filepath for raw in self.broker.peek(queue, 10_000)]


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("a.pdf", "high"),
        ("A.PDF", "high"),
        ("a.Docx", "high"),
        ("x/y/z.zip", "high"),
        (".pdf", "high"),
        (b"\xff.pdf", "high"),
        ("a\n.pdf", "high"),
        ("a.pdf.txt", "low"),
        ("pdf", "low"),
        ("a.pdf/readme", "low"),
        ("a.pdf\n", "low"),
    ],
)
def test_the_extension_in_any_case_decides_the_priority(name, queue):
    box = Box()
    box.put(file(name))
    box.outbox.send()
    [raw] = box.broker.peek(queue, 10)
    assert (decode(raw).priority, decode(raw).path) == (queue, file(name).path)


def test_other_files_get_the_default_priority_and_without_extensions_all_do():
    box = Box(default_priority="high", high_priority_exts=[])
    box.put(file("a.txt"), file("a.pdf"))
    box.outbox.send()
    assert box.jobs("high") == ["/d/a.txt", "/d/a.pdf"]


def test_where_no_queue_is_called_high_the_most_urgent_one_is_taken():
    config = config_from({"broker": "memory", "worker": {"priorities": ["now", "later"], "queues": {}}})
    broker = MemoryBroker(config)
    outbox = Outbox(
        config,
        broker,
        broker,
        look=lambda path: None,
        changed=lambda found: None,
        tally=Counter(),
        emit=RecordedEvents(),
    )
    outbox.put(file("a.pdf"), "")
    outbox.put(file("a.txt"), "")
    outbox.send()
    assert broker.census().pending == {"now": 1, "later": 1}


def test_a_job_knows_its_version_and_the_ledger_its_device():
    box = Box()
    box.put(file("a.txt", size=42))
    box.outbox.send()
    job = decode(box.broker.peek("low", 1)[0])
    assert (job.filesize, job.signature, job.retries) == (42, "42-100", 0)
    entry = box.broker.lookup([b"/d/a.txt"])[0]
    assert (entry.versions, entry.device) == ((("42-100", job.id),), "ext4:/dev/vda")


def test_one_call_takes_many_files_and_a_turn_only_some_calls(monkeypatch):
    monkeypatch.setattr(module, "BATCH", 10)
    monkeypatch.setattr(module, "CALLS_A_TURN", 3)
    box = Box()
    box.put(*(file(str(n)) for n in range(45)))
    box.outbox.send()
    assert box.calls == [(10, 0)] * 3
    assert len(box.outbox) == 15
    box.outbox.send()
    assert box.calls == [(10, 0)] * 4 + [(5, 0)]
    assert box.tally == {"enqueued": 45}
    assert box.told.count("job.produced") == 45


def test_a_known_version_is_counted_as_such_and_announced_to_nobody():
    box = Box()
    for _ in range(2):
        box.put(file("a"))
        box.outbox.send()
    assert box.tally == {"enqueued": 1, "known": 1}
    assert box.told.count("job.produced") == 1


def test_it_is_full_at_some_point(monkeypatch):
    monkeypatch.setattr(module, "MOST", 2)
    box = Box()
    box.put(file("a"))
    assert not box.outbox.is_full
    box.put(file("b"))
    assert box.outbox.is_full


def test_the_same_version_twice_is_one_entry_and_keeps_its_id():
    box = Box()
    box.put(file("a"))
    box.loses_reply = True
    with pytest.raises(BrokerUnavailable):
        box.outbox.send()
    box.put(file("a"))
    assert len(box.outbox) == 1
    box.loses_reply = False
    box.outbox.send()
    assert box.tally == {"enqueued": 1}, "with another id it would be taken for somebody else's"


def test_a_newer_version_takes_the_place_of_one_that_was_not_sent():
    box = Box()
    box.put(file("a", size=1))
    box.put(file("a", size=2))
    box.outbox.send()
    assert [decode(raw).filesize for raw in box.broker.peek("low", 9)] == [2]


# the rate limit


def test_no_window_gets_more_than_its_permits_and_one_call_a_window_is_enough():
    box = Box(rate_limit_per_sec=5)
    box.put(*(file(str(n)) for n in range(12)))
    for total in (5, 10, 12):
        box.outbox.send()
        assert box.tally["enqueued"] == total
        box.outbox.send()  # too early: nobody is asked
        box.advance(1.03)
    assert box.calls == [(6, 5), (6, 5), (2, 5)]
    assert len(box.outbox) == 0


def test_it_waits_until_the_window_ends_and_says_what_for():
    box = Box(rate_limit_per_sec=5)
    box.put(*(file(str(n)) for n in range(6)))
    assert box.outbox.throttle.reason == ""
    box.outbox.send()
    assert box.outbox.throttle.reason == "producer.rate_limit_per_sec"
    assert 1.0 <= box.outbox.left_s(box.hands.monotonic()) <= 1.021
    box.advance(1.03)
    box.outbox.send()
    assert box.outbox.throttle.reason == ""


def test_known_versions_take_no_permit():
    box = Box(rate_limit_per_sec=3)
    box.put(*(file(str(n)) for n in range(3)))
    box.outbox.send()
    box.put(*(file(str(n)) for n in range(3)))
    box.outbox.send()
    assert box.tally == {"enqueued": 3, "known": 3}


def test_a_file_that_changed_while_it_waited_for_its_permit_settles_again():
    box = Box(rate_limit_per_sec=1)
    box.put(file("a"), file("b"), file("c"))
    box.outbox.send()
    box.disk[b"/d/b"] = file("b", size=9)
    del box.disk[b"/d/c"]
    box.advance(1.03)
    box.outbox.send()
    assert box.changed == [file("b", size=9)]
    assert len(box.outbox) == 0
    assert box.jobs("low") == ["/d/a"]


def test_a_file_is_not_looked_at_again_at_once():
    box = Box()
    box.put(file("a"))
    box.disk.clear()
    box.hands.advance(STALE_S - 0.01)
    box.outbox.send()
    assert box.tally == {"enqueued": 1}


# backpressure


def test_while_too_many_jobs_wait_none_is_added():
    box = Box(max_pending=3)
    box.put(*(file(str(n)) for n in range(5)))
    box.outbox.send()
    assert box.broker.census().pending["low"] == 3
    assert box.outbox.throttle.reason == "producer.max_pending"
    box.advance(0.6)
    box.outbox.send()
    assert box.broker.census().pending["low"] == 3
    assert len(box.outbox) == 2


def test_as_soon_as_there_is_room_it_goes_on():
    box = Box(max_pending=3)
    box.put(*(file(str(n)) for n in range(5)))
    box.outbox.send()
    box.broker.cancel([decode(raw).id for raw in box.broker.peek("low", 1)])
    box.advance(0.6)
    box.outbox.send()
    assert box.broker.census().pending["low"] == 3
    assert len(box.outbox) == 1


# outages


def test_nothing_leaves_before_the_broker_has_answered():
    box = Box()
    box.put(file("a"), file("b"))
    box.is_away = True
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            box.outbox.send()
    assert len(box.outbox) == 2
    box.is_away = False
    box.outbox.send()
    assert box.tally == {"enqueued": 2}
    assert box.jobs("low") == ["/d/a", "/d/b"]


def test_a_call_repeated_after_a_lost_reply_doubles_nothing_and_is_counted_once():
    box = Box()
    box.put(file("a"))
    box.loses_reply = True
    with pytest.raises(BrokerUnavailable):
        box.outbox.send()
    box.loses_reply = False
    box.outbox.send()
    assert box.jobs("low") == ["/d/a"]
    assert box.tally == {"enqueued": 1}
    assert box.told.count("job.produced") == 1


def test_what_changed_is_told_of_before_the_call_that_may_fail():
    box = Box()
    box.put(file("a"), file("b"))
    box.hands.advance(1.0)
    box.disk[b"/d/a"] = file("a", size=9)
    box.is_away = True
    with pytest.raises(BrokerUnavailable):
        box.outbox.send()
    assert box.changed == [file("a", size=9)]
