"""From a stable file to a job: priorities, batches, the rate limit, back-pressure, outages."""

from collections.abc import Sequence

import pytest

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Census, Enqueued, Entry
from fileq.config import config_from
from fileq.core.errors import BrokerUnavailable
from fileq.core.events import SkipReason, waited_ms
from fileq.core.job import Job, decode
from fileq.core.settlement import complete
from fileq.files import status
from fileq.files.status import FoundFile, ScanDirMounts
from fileq.producer import enqueuer as module
from fileq.producer.enqueuer import REPORT_EVERY_S, STALE_S, BeforeEnqueue, Enqueuer, SentBatch
from fileq.producer.finder.scan import ProducerCounts
from fileq.producer.ledger_stages import FileIdentity
from fileq.testing.conformance.builders import worker_info
from fileq.testing.conformance.harness import FakeClock
from tests.support.clocks import ManualClocks, RecordedEvents


@pytest.fixture(autouse=True)
def one_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "read_mountinfo", lambda: b"27 1 254:0 / / rw - ext4 /dev/vda rw")


def file(name: str | bytes, size: int = 3) -> FoundFile:
    raw = name if isinstance(name, bytes) else name.encode()
    return FoundFile(b"/d/" + raw, size, 100, 7)


class Sender:
    """An enqueuer on the memory broker. The test controls the clocks, the files and the outages."""

    def __init__(self, before: BeforeEnqueue | None = None, **sections: dict[str, object]) -> None:
        self.hands = ManualClocks()
        self.counts = ProducerCounts()
        self.events = RecordedEvents()
        self.clock = FakeClock()
        config = config_from({"broker": "memory", **sections})
        self.broker = MemoryBroker(config, clock=self.clock)
        self.disk: dict[bytes, FoundFile] = {}
        self.enqueued: list[Entry] = []
        self.known = 0
        self.calls: list[tuple[int, int]] = []
        self.is_away = False
        self.loses_reply = False
        self.stage = Enqueuer(
            config,
            self,  # type: ignore[arg-type]
            FileIdentity(config.producer.identity, ScanDirMounts(b"/d")),
            self,  # type: ignore[arg-type]
            before_enqueue=before,
            emit=self.events,
            monotonic=self.hands.monotonic,
            wall_ms=lambda: self.clock.ms,
        )

    def find(self, path: bytes) -> FoundFile | None:
        return self.disk.get(path)

    def census(self) -> Census:
        return self.broker.census()

    def enqueue(self, entries: Sequence[Entry], *, limit: int = 0) -> Enqueued:
        self.calls.append((len(entries), limit))
        if self.is_away:
            raise BrokerUnavailable("away")
        answer = self.broker.enqueue(entries, limit=limit)
        if self.loses_reply:
            raise BrokerUnavailable("no answer")
        return answer

    def add(self, *files: FoundFile) -> None:
        self.disk.update({found.path: found for found in files})
        self.stage.add(files, self.hands.monotonic())

    def turn(self) -> SentBatch:
        batch = self.stage.turn(self.hands.monotonic())
        self.enqueued += batch.enqueued
        self.known += batch.known
        return batch

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
def test_the_extension_decides_the_priority_case_insensitively(name, queue):
    sender = Sender()
    sender.add(file(name))
    sender.turn()
    [raw] = sender.broker.peek(queue, 10)
    assert (decode(raw).priority, decode(raw).path) == (queue, file(name).path)


def test_without_extensions_every_file_gets_the_default_priority():
    sender = Sender(producer={"default_priority": "high", "high_priority_exts": []})
    sender.add(file("a.txt"), file("a.pdf"))
    sender.turn()
    assert sender.jobs("high") == ["/d/a.txt", "/d/a.pdf"]


def test_without_a_queue_called_high_the_first_queue_is_used():
    sender = Sender(worker={"priorities": ["now", "later"], "queues": {}})
    sender.add(file("a.pdf"), file("a.txt"))
    sender.turn()
    assert sender.broker.census().pending == {"now": 1, "later": 1}


def test_the_job_has_the_version_and_the_ledger_has_the_device():
    sender = Sender()
    sender.add(file("a.txt", size=42))
    sender.turn()
    job = decode(sender.broker.peek("low", 1)[0])
    assert (job.filesize, job.signature, job.retries) == (42, "42-100", 0)
    entry = sender.broker.lookup([b"/d/a.txt"])[0]
    assert (entry.versions, entry.device) == ((("42-100-i7", job.id),), "ext4:/dev/vda")


def test_a_call_sends_many_files_and_a_turn_makes_few_calls(monkeypatch):
    monkeypatch.setattr(module, "BATCH", 10)
    monkeypatch.setattr(module, "CALLS_PER_TURN", 3)
    sender = Sender()
    sender.add(*(file(str(n)) for n in range(45)))
    sender.turn()
    assert sender.calls == [(10, 0)] * 3
    assert len(sender.stage) == 15
    sender.turn()
    assert sender.calls == [(10, 0)] * 4 + [(5, 0)]
    assert len(sender.enqueued) == 45


def test_a_known_version_is_counted_and_not_enqueued():
    sender = Sender()
    for _ in range(2):
        sender.add(file("a"))
        sender.turn()
    assert (len(sender.enqueued), sender.known) == (1, 1)


def test_the_room_is_limited(monkeypatch):
    monkeypatch.setattr(module, "UNSENT_MAX", 2)
    sender = Sender()
    sender.add(file("a"))
    assert sender.stage.room == 1
    sender.add(file("b"))
    assert sender.stage.room == 0


def test_the_same_version_added_twice_keeps_its_id():
    sender = Sender()
    sender.add(file("a"))
    sender.loses_reply = True
    assert sender.turn().error is not None
    sender.add(file("a"))
    assert len(sender.stage) == 1
    sender.loses_reply = False
    sender.turn()
    assert (len(sender.enqueued), sender.known) == (1, 0), "with another id the ledger would know it from another job"


def test_a_newer_version_replaces_one_that_was_not_sent():
    sender = Sender()
    sender.add(file("a", size=1))
    sender.add(file("a", size=2))
    sender.turn()
    assert [decode(raw).filesize for raw in sender.broker.peek("low", 9)] == [2]


# the rate limit


@pytest.mark.parametrize("setting", [{"rate_limit_per_sec": 2}, {"max_pending": 2}])
def test_a_job_is_created_when_it_is_sent_not_while_the_producer_is_held(setting: dict[str, object]) -> None:
    """So the pickup latency of a worker does not contain the time of the producer's own limit."""
    sender = Sender(producer=setting)
    sender.add(*(file(f"{n}.txt") for n in range(6)))
    waited = []
    while len(sender.stage):
        sender.turn()
        sender.broker.register({slot: worker_info() for slot in ("s0", "s1")})
        claims = sender.broker.settle_and_claim([], ["s0", "s1"]).claims
        waited += [waited_ms(claim) for claim in claims]
        sender.broker.settle_and_claim([complete(claim) for claim in claims], [])
        sender.advance(5)
    assert waited == [0] * 6


def test_a_window_needs_one_call_and_gets_no_more_than_its_permits():
    sender = Sender(producer={"rate_limit_per_sec": 5})
    sender.add(*(file(str(n)) for n in range(12)))
    for total in (5, 10, 12):
        sender.turn()
        assert len(sender.enqueued) == total
        sender.turn()  # too early: no call
        sender.advance(1.03)
    assert sender.calls == [(6, 5), (6, 5), (2, 5)]
    assert len(sender.stage) == 0


def test_a_full_window_is_waited_for_and_the_setting_is_named():
    sender = Sender(producer={"rate_limit_per_sec": 5})
    sender.add(*(file(str(n)) for n in range(6)))
    assert sender.stage.hold is None
    sender.turn()
    assert sender.stage.hold.reason == "producer.rate_limit_per_sec"
    assert 1.0 <= sender.stage.throttle.left_s(sender.hands.monotonic()) <= 1.021
    sender.advance(1.03)
    sender.turn()
    assert sender.stage.hold is None


def test_known_versions_take_no_permit():
    sender = Sender(producer={"rate_limit_per_sec": 3})
    sender.add(*(file(str(n)) for n in range(3)))
    sender.turn()
    sender.add(*(file(str(n)) for n in range(3)))
    sender.turn()
    assert (len(sender.enqueued), sender.known) == (3, 3)


def test_a_file_that_changed_while_it_waited_for_its_permit_is_returned_as_changed():
    sender = Sender(producer={"rate_limit_per_sec": 1})
    sender.add(file("a"), file("b"), file("c"))
    sender.turn()
    sender.disk[b"/d/b"] = file("b", size=9)
    del sender.disk[b"/d/c"]
    sender.advance(1.03)
    assert sender.turn().changed == [file("b", size=9)]
    assert len(sender.stage) == 0
    assert sender.jobs("low") == ["/d/a"]


def test_a_file_that_did_not_wait_is_not_read_again():
    sender = Sender()
    sender.add(file("a"))
    sender.disk.clear()
    sender.hands.advance(STALE_S - 0.01)
    sender.turn()
    assert (len(sender.enqueued), sender.known) == (1, 0)


# back-pressure


def test_while_max_pending_jobs_wait_none_is_added():
    sender = Sender(producer={"max_pending": 3})
    sender.add(*(file(str(n)) for n in range(5)))
    sender.turn()
    assert sender.broker.census().pending["low"] == 3
    assert sender.stage.hold.reason == "producer.max_pending"
    sender.advance(0.6)
    sender.turn()
    assert sender.broker.census().pending["low"] == 3
    assert len(sender.stage) == 2


def test_below_max_pending_enqueueing_continues():
    sender = Sender(producer={"max_pending": 3})
    sender.add(*(file(str(n)) for n in range(5)))
    sender.turn()
    sender.broker.cancel([decode(raw).id for raw in sender.broker.peek("low", 1)])
    sender.advance(0.6)
    sender.turn()
    assert sender.broker.census().pending["low"] == 3
    assert len(sender.stage) == 1


# outages


def test_an_entry_stays_until_the_broker_has_answered():
    sender = Sender()
    sender.add(file("a"), file("b"))
    sender.is_away = True
    for _ in range(3):
        assert sender.turn().error is not None
    assert len(sender.stage) == 2
    sender.is_away = False
    sender.turn()
    assert (len(sender.enqueued), sender.known) == (2, 0)
    assert sender.jobs("low") == ["/d/a", "/d/b"]


def test_a_call_repeated_after_a_lost_reply_enqueues_and_counts_once():
    sender = Sender()
    sender.add(file("a"))
    sender.loses_reply = True
    assert sender.turn().error is not None
    sender.loses_reply = False
    sender.turn()
    assert sender.jobs("low") == ["/d/a"]
    assert (len(sender.enqueued), sender.known) == (1, 0)


def test_changed_files_are_returned_even_if_the_call_fails():
    sender = Sender()
    sender.add(file("a"), file("b"))
    sender.hands.advance(1.0)
    sender.disk[b"/d/a"] = file("a", size=9)
    sender.is_away = True
    batch = sender.turn()
    assert batch.error is not None
    assert batch.changed == [file("a", size=9)]


def test_a_job_that_before_enqueue_changes_is_enqueued_as_changed() -> None:
    sender = Sender(lambda job: job.but(priority="high", max_retries=7))
    sender.add(file("a.txt"))
    sender.turn()
    [entry] = sender.enqueued
    assert (entry.queue, entry.job.max_retries, entry.version is not None) == ("high", 7, True)


def test_a_vetoed_file_is_not_enqueued_and_counts_as_skipped() -> None:
    sender = Sender(lambda job: None if job.filepath.endswith(".txt") else job)
    sender.add(file("a.txt"), file("b.csv"))
    sender.turn()
    assert [entry.job.filepath for entry in sender.enqueued] == ["/d/b.csv"]
    assert sender.counts.skipped == {SkipReason.VETOED: 1}
    assert len(sender.stage) == 0


def test_a_version_that_is_vetoed_replaces_one_that_was_not_sent() -> None:
    sender = Sender(lambda job: job if job.filesize == 3 else None)
    sender.is_away = True
    sender.add(file("a.txt"))
    sender.turn()
    sender.add(file("a.txt", 4))
    assert len(sender.stage) == 0


@pytest.mark.parametrize("priority", ["raises", "urgent"])
def test_a_before_enqueue_that_fails_skips_the_file_and_is_reported_once_a_minute(priority: str) -> None:
    def before(job: Job) -> Job:
        if priority == "raises":
            raise ValueError("x")
        return job.but(priority=priority)

    sender = Sender(before)
    for _ in range(2):
        sender.add(file("a.txt"), file("b.txt"))
        sender.turn()
        sender.hands.advance(REPORT_EVERY_S)
    assert sender.enqueued == []
    assert sender.counts.skipped == {SkipReason.VETO_FAILED: 4}
    assert sender.events.count("producer.before_enqueue_failed") == 2
