"""The reason of a pause, and the pauses in which a job waited, on the pages of the console."""

from __future__ import annotations

from msgspec.structs import replace

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Entry, Record
from fileq.commands.admin.pauses import (
    HISTORIES,
    NOTES,
    PAST_MAX,
    PAST_TEXT_MAX,
    PastPause,
    PauseNote,
    PauseResult,
    end_note,
    set_paused,
)
from fileq.core.job import State, encode, rfc3339_ms, wall_clock_ms
from fileq.core.settlement import complete
from fileq.queries.documents import AttemptDocument, job_document
from fileq.server.console.job_steps import steps_of
from fileq.testing.conformance.builders import a_job
from tests.support.console_jobs import HOSTILE, QUEUES, SLOT, in_order, pages_with_worker, shown, words


def set_high(broker: MemoryBroker, *, paused: bool, by: str = "olga", reason: str = "") -> PauseResult:
    return set_paused(broker, "high", QUEUES, paused=paused, by=by, reason=reason)


def at(second: float) -> str:
    return rfc3339_ms(1_700_000_000_000 + round(second * 1000))


def test_the_reason_of_a_pause_is_wherever_a_page_says_who_paused() -> None:
    pages = pages_with_worker()
    pages.broker.enqueue([Entry(a_job("a"), "high")])
    assert set_high(pages.broker, paused=True).reason == ""
    added = set_high(pages.broker, paused=True, by="maria", reason=f" disk {HOSTILE} ")
    assert (added.has_changed, added.old_reason, added.reason) == (False, "", f"disk {HOSTILE}")
    assert NOTES.all(pages.broker)["high"].by == "olga", "she paused it"
    for text in shown(pages, "", "/queues", "/jobs/a"):
        assert "by olga: disk &lt;script&gt;" in text
    [queues] = shown(pages, "/queues")
    assert queues.count('data-asks="reason"') == 1, "the dialog of the queue that is not paused"


def test_a_note_of_an_older_release_has_no_reason() -> None:
    pages = pages_with_worker()
    pages.broker.pause("high")
    pages.broker.put_document(NOTES.kind, "high", b'{"by":"olga","at":"2026-05-01T12:00:00.000Z"}')
    assert NOTES.all(pages.broker) == {"high": PauseNote("olga", "2026-05-01T12:00:00.000Z")}
    assert "by olga</div>" in shown(pages, "/queues")[0]


def test_a_timeline_names_the_pause_in_which_the_job_waited() -> None:
    pages = pages_with_worker()
    now = [wall_clock_ms() - 600_000]
    pages.broker.store.clock = lambda: now[0]
    set_high(pages.broker, paused=True, reason=f"disk {HOSTILE}")
    now[0] += 1000
    pages.broker.enqueue([Entry(a_job("a"), "high")])
    now[0] += 60_000
    set_high(pages.broker, paused=False)
    now[0] += 1000
    [claim] = pages.broker.settle_and_claim([], [SLOT]).claims
    pages.broker.settle_and_claim([complete(claim)], [])
    [text] = shown(pages, "/jobs/a")
    timeline = words(text).partition("Timeline")[2]
    assert in_order(
        timeline, "created", "started", "waited 1 min 1 s", "queue high was paused from", "by olga: disk &lt;"
    )


def test_only_pauses_within_the_wait_are_told() -> None:
    pauses = [PastPause(at(n), at(n + 1), "olga") for n in (-9, 1, 3, 5, 7, 50)]
    attempt = AttemptDocument(1, at(20), at(21), 1.0, "w", "completed", "")
    made = job_document(Record("a", State.COMPLETED, encode(a_job("a")), "high", attempt_count=1))
    job = replace(made, created_at=at(0), started_at=at(20), completed_at=at(21), attempts=(attempt,))
    [_, started, _] = steps_of(job, pauses={"high": tuple(pauses)})
    said = [note for note in started.notes if "paused" in note]
    assert [note.partition(" by ")[0] for note in said] == [
        f"queue high was paused from {at(n)[11:19]} to {at(n + 1)[11:19]} UTC" for n in (3, 5, 7)
    ]
    assert "and once earlier" in started.notes


def test_the_history_is_bounded_and_has_each_pause_once() -> None:
    broker = pages_with_worker().broker
    hostile = "\x00" * 1000
    for n in range(PAST_MAX + 3):
        note = PauseNote(hostile, at(n), hostile)
        for _ in range(2):  # as after a kill between the history and the note
            end_note(broker, "high", note, 1_700_000_000_000 + n * 1000 + 500)
    [known] = HISTORIES.all(broker).values()
    assert [one.start for one in known] == [at(n) for n in range(3, PAST_MAX + 3)]
    assert {len(one.reason) for one in known} == {len(one.by) for one in known} == {PAST_TEXT_MAX}
