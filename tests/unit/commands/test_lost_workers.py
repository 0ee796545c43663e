"""The page of workers: processes that died stay visible, and jobs of a cancelled batch are being cancelled."""

from __future__ import annotations

from msgspec.structs import replace

from fileq.brokers.batches import NewBatch
from fileq.brokers.lost_workers import (
    KEPT_MS,
    LOST_WORKERS,
    NOTES_MAX,
    LostSlot,
    LostWorker,
    lost_workers_in,
    note_lost,
)
from fileq.brokers.types import Entry, WorkerInfo, WorkerView
from fileq.cli.stats_text import lost_lines
from fileq.cli.terminal import Screen
from fileq.client.broker_transport import BrokerTransport
from fileq.commands.admin.running_workers import workers
from fileq.core.job import rfc3339_ms, wall_clock_ms
from fileq.queries.documents import worker_documents
from fileq.testing.conformance.builders import a_job
from tests.support.console_jobs import QUEUES, SLOT, pages_with_worker, shown, words

NOW_MS = 1_700_000_000_000


def lost(pid: int, jobs: int = 0, slots: int = 2, silent_s: float = 40.0) -> list[LostSlot]:
    return [LostSlot(f"my-host-{pid}-{n}-abcd", silent_s, jobs if n == 0 else 0) for n in range(slots)]


def test_a_process_that_died_idle_is_on_the_page_of_workers_until_it_is_back() -> None:
    pages = pages_with_worker()
    note_lost(pages.broker, [*lost(11), *lost(12, jobs=2)], wall_clock_ms())
    [text] = shown(pages, "/workers")
    assert "Silent 2" in words(text)
    idle, busy = words(text).partition("my-host 11")[2], words(text).partition("my-host 12")[2]
    assert "It was running no jobs." in idle.partition("Shown for an hour")[0]
    assert "Its 2 jobs were recovered" in busy.partition("Shown for an hour")[0]
    found = workers(pages.broker).lost
    assert {one.pid: one.jobs for one in found} == {11: 0, 12: 2}
    line = next(line for line in lost_lines(found, Screen()) if " 11," in line)
    assert line.startswith("lost: my-host 11, silent since 2")
    assert line.endswith("Z, held no job")
    pages.broker.register({"my-host-11-0-beef": WorkerInfo("my-host", 11, 1, "1", QUEUES)})
    assert [one.pid for one in workers(pages.broker).lost] == [12], "it was only frozen"


def test_a_process_that_was_found_gone_is_not_called_silent_since_then() -> None:
    pages = pages_with_worker()
    note_lost(pages.broker, [LostSlot("my-host-11-0-abcd", 0.0, 0, is_gone=True)], wall_clock_ms())
    [text] = shown(pages, "/workers")
    assert "Gone since 2" in words(text)
    [line] = lost_lines(workers(pages.broker).lost, Screen())
    assert line.startswith("lost: my-host 11, its process was gone at 2")


def test_a_worker_that_is_gone_has_all_its_slots_while_a_reaper_removes_them() -> None:
    info = WorkerInfo("host", 1, 0, "0", ("low",), count=16)
    views = [WorkerView(f"host-1-{n}-x", info, is_alive=False) for n in range(4)]
    [process] = worker_documents(views, NOW_MS)
    assert (process.busy, process.slots) == (0, 16)


def test_reapers_that_note_the_same_process_agree() -> None:
    broker = pages_with_worker().broker
    note_lost(broker, lost(11, jobs=2, silent_s=50.0), NOW_MS)
    note_lost(broker, lost(11, slots=1), NOW_MS + 1000)
    note_lost(broker, [LostSlot("w1", 40.0, 1), LostSlot("a b-1-0-x", 40.0, 1)], NOW_MS)  # not names of processes
    since, found = rfc3339_ms(NOW_MS - 50_000), rfc3339_ms(NOW_MS + 1000)
    assert lost_workers_in(broker.documents(LOST_WORKERS.kind), NOW_MS) == [
        LostWorker("my-host", 11, since, found, 2, 2)
    ]


def test_notes_are_bounded_in_number_and_time() -> None:
    broker = pages_with_worker().broker
    for pid in range(NOTES_MAX + 5):
        note_lost(broker, lost(pid), NOW_MS + pid)
    broker.put_document(LOST_WORKERS.kind, "unreadable", b"{")
    names = {f"my-host-{pid}" for pid in range(5, NOTES_MAX + 5)}
    assert broker.documents(LOST_WORKERS.kind).keys() == names | {"unreadable"}
    later_ms = NOW_MS + 2 * KEPT_MS
    assert lost_workers_in(broker.documents(LOST_WORKERS.kind), later_ms) == []
    note_lost(broker, lost(7), later_ms)
    assert broker.documents(LOST_WORKERS.kind).keys() == {"my-host-7", "unreadable"}


def test_a_running_job_whose_batch_was_cancelled_has_no_button_to_cancel_it() -> None:
    pages = pages_with_worker()
    pages.broker.create_batch(NewBatch("nightly", "nightly"))
    pages.broker.enqueue([Entry(replace(a_job("a"), batch_id="nightly"), "low", joins=True)])
    pages.broker.settle_and_claim([], [SLOT])
    assert 'data-action="DELETE /jobs/a"' in shown(pages, "/workers")[0]
    BrokerTransport(pages.broker, pages.config).cancel_batch("nightly")
    for text in shown(pages, "/workers", "/jobs/a", "/jobs"):
        assert "Cancelling…" in text
        assert 'data-action="DELETE /jobs/a"' not in text
