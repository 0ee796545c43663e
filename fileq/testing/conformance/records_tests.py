"""Records: one for each job, from enqueue until the history TTL after its end; peek and pages."""

import pytest

from fileq.brokers.types import Revival
from fileq.core.errors import BrokerError
from fileq.core.job import State
from fileq.core.settlement import complete, release
from fileq.testing.conformance.builders import (
    burial,
    claim_one,
    claims_of,
    completed,
    counter,
    deferred,
    drift,
    enqueue,
    failed,
    foreign,
    has_record,
    names,
    raws_in,
    record_of,
    running,
    settle,
)
from fileq.testing.conformance.harness import Harness, MakeHarness


def test_records_of_no_ids_are_empty(harness: Harness) -> None:
    assert harness.broker.records([]) == []


def test_an_unknown_id_has_no_record(harness: Harness) -> None:
    assert harness.broker.records(["unknown"]) == [None]


def test_a_failed_attempt_keeps_its_traceback_also_in_the_dead_letter(harness: Harness) -> None:
    traceback = 'Traceback:\n  File "a.py", line 1, in ünï\nValueError: \\ \x1b'
    settle(harness, failed(running(harness, "a"), delay_ms=0, traceback=traceback))
    harness.broker.promote()
    settle(harness, burial(claim_one(harness), traceback="second " * 2000))
    record = record_of(harness, "a")
    assert record.state is State.DEAD
    assert [attempt.traceback for attempt in record.attempts] == [traceback, "second " * 2000]


def test_a_failed_attempt_keeps_what_its_handler_printed(harness: Harness) -> None:
    output = "page 1 ünï\n\\ \x1b[31m \x00"
    settle(harness, failed(running(harness, "a"), delay_ms=0, output=output, traceback="first"))
    harness.broker.promote()
    settle(harness, burial(claim_one(harness), died=True, output="y" * 8192))
    attempts = record_of(harness, "a").attempts
    assert [(attempt.traceback, attempt.output) for attempt in attempts] == [("first", output), ("", "y" * 8192)]


def test_an_attempt_without_a_traceback_has_none(harness: Harness) -> None:
    settle(harness, failed(running(harness, "a")))
    settle(harness, complete(running(harness, "b")))
    assert [record_of(harness, id).attempts[0].traceback for id in ("a", "b")] == ["", ""]


def test_each_id_has_its_own_record(harness: Harness) -> None:
    enqueue(harness, "a", "c")
    found = harness.broker.records(["c", "b", "a", "a"])
    assert [record and record.id for record in found] == ["c", None, "a", "a"]


def test_a_thousand_in_one_call(harness: Harness) -> None:
    enqueue(harness, *names(1000))
    assert [record and record.id for record in harness.broker.records(names(1000))] == names(1000)
    assert harness.broker.states(names(1000)) == [State.PENDING] * 1000


def test_the_states_are_those_of_the_records(harness: Harness) -> None:
    assert harness.broker.states([]) == []
    completed(harness, "done")
    settle(harness, burial(running(harness, "dead")))
    settle(harness, failed(running(harness, "failed"), delay_ms=10**9))
    running(harness, "running")
    enqueue(harness, "cancelled")
    harness.broker.cancel(["cancelled"])
    enqueue(harness, "pending")
    enqueue(harness, "later", delay_ms=10**9)
    ids = ["later", "unknown", "done", "dead", "failed", "running", "cancelled", "pending", "done"]
    found = harness.another().states(ids)
    assert found == [record and record.state for record in harness.broker.records(ids)]
    assert found[:3] == [State.SCHEDULED, None, State.COMPLETED]
    harness.advance(2 * harness.config.worker.history_ttl)
    assert harness.broker.states(["done", "dead"]) == [None, State.DEAD]


def test_reading_does_not_create_a_record(harness: Harness) -> None:
    harness.broker.records(["a"])
    enqueue(harness, "a")
    assert record_of(harness, "a").state is State.PENDING


def test_a_record_keeps_every_attempt(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=1000)
    t0 = harness.clock.ms
    harness.advance(1)
    harness.broker.promote()
    harness.advance(1)
    claim = claim_one(harness, "w1")
    harness.advance(1)
    settle(harness, failed(claim, error="first", delay_ms=500))
    harness.advance(0.5)
    harness.broker.promote()
    claim = claim_one(harness, "w2")
    harness.advance(1)
    settle(harness, release(claim))
    claim = claim_one(harness, "w3")
    harness.advance(1)
    settle(harness, complete(claim, result=b"42"))
    record = record_of(harness, "a")
    assert (record.state, record.queue, record.slot) == (State.COMPLETED, "low", "w3")
    assert (record.created_ms, record.started_ms, record.ended_ms) == (t0, t0 + 4500, t0 + 5500)
    assert record.result == b"42"
    assert [(a.started_ms - t0, a.ended_ms - t0, a.slot, a.outcome, a.error) for a in record.attempts] == [
        (2000, 3000, "w1", "failed", "first"),
        (3500, 4500, "w2", "released", ""),
        (4500, 5500, "w3", "completed", ""),
    ]


def test_the_record_holds_the_same_bytes_as_the_place(harness: Harness) -> None:
    enqueue(harness, "a")
    assert record_of(harness, "a").raw == raws_in(harness, "low")[0]
    settle(harness, failed(claim_one(harness), delay_ms=10))
    assert record_of(harness, "a").raw == raws_in(harness, "scheduled")[0]
    harness.advance(1)
    harness.broker.promote()
    assert record_of(harness, "a").raw == raws_in(harness, "low")[0]
    settle(harness, burial(claim_one(harness)))
    assert record_of(harness, "a").raw == raws_in(harness, "dead_letter")[0]


@pytest.mark.parametrize("state", ["pending", "scheduled", "running", "retrying", "deferred", "dead"])
def test_the_record_of_a_job_that_has_not_ended_never_expires(harness: Harness, state: str) -> None:
    if state in ("pending", "scheduled"):
        enqueue(harness, "a", delay_ms=10**12 if state == "scheduled" else 0)
    else:
        claim = running(harness, "a")
        if state == "retrying":
            settle(harness, failed(claim, delay_ms=10**12))
        elif state == "deferred":
            settle(harness, deferred(claim, delay_ms=10**12))
        elif state == "dead":
            settle(harness, burial(claim))
    harness.advance(100 * harness.config.worker.history_ttl)
    assert record_of(harness, "a").state == state


def test_a_copy_that_runs_again_removes_the_expiry(harness: Harness) -> None:
    """The job completed and its record had an expiry; then another program pushed it again."""
    completed(harness, "a")
    [raw] = raws_in(harness, "completed")
    harness.push_raw("low", raw)
    claim = claim_one(harness)
    harness.advance(2 * harness.config.worker.history_ttl)
    assert record_of(harness, "a").state is State.RUNNING
    settle(harness, complete(claim))
    assert record_of(harness, "a").attempt_count == 2
    harness.advance(harness.config.worker.history_ttl)
    assert not has_record(harness, "a")


@pytest.mark.parametrize("back", ["released", "given back", "revived"])
def test_a_copy_that_goes_back_to_its_queue_removes_the_expiry(harness: Harness, back: str) -> None:
    """One copy completed and set the expiry; the other waits again and still has its record when it is claimed."""
    for _ in range(2):
        harness.push_raw("low", foreign("a"))
    first, second = claims_of(harness, "w1", "w2")
    if back == "revived":
        settle(harness, burial(second))
    settle(harness, complete(first))
    if back == "released":
        settle(harness, release(second))
    elif back == "given back":
        harness.broker.deregister(["w2"])
    else:
        harness.broker.revive([Revival(burial(second).next_raw, "a", foreign("a"), "low")])
    harness.advance(2 * harness.config.worker.history_ttl)
    assert record_of(harness, "a").state is State.PENDING
    claim_one(harness, "w3")
    assert counter(harness, "adopted") == 2
    assert drift(harness) == 0


def test_history_ttl_is_a_setting(make_harness: MakeHarness) -> None:
    harness = make_harness(**{"worker.history_ttl": "60s"})
    completed(harness, "a")
    harness.advance(59.999)
    assert has_record(harness, "a")
    harness.advance(0.001)
    assert not has_record(harness, "a")


def test_every_client_sees_the_same_record(harness: Harness) -> None:
    settle(harness, complete(running(harness, "a"), result=b"{}"))
    assert harness.another().records(["a"]) == harness.broker.records(["a"])


def test_peek_shows_the_next_out_of_a_queue(harness: Harness) -> None:
    enqueue(harness, "a", "b", "c")
    assert harness.broker.peek("low", 2) == raws_in(harness, "low")[:2]
    assert harness.broker.peek("low", 10) == raws_in(harness, "low")
    assert harness.broker.peek("low", 0) == []
    assert harness.broker.peek("high", 5) == []


def test_peek_shows_the_next_due_of_the_schedule(harness: Harness) -> None:
    enqueue(harness, "b", delay_ms=200)
    enqueue(harness, "a", delay_ms=100)
    assert harness.broker.peek("scheduled", 1) == [record_of(harness, "a").raw]


@pytest.mark.parametrize("look", ["peek", "pages"])
def test_an_unknown_place_is_refused_by_name(harness: Harness, look: str) -> None:
    with pytest.raises(BrokerError, match="basement"):
        harness.broker.peek("basement", 1) if look == "peek" else list(harness.broker.pages("basement"))


@pytest.mark.parametrize("size", [1, 3, 7, 500])
def test_pages_show_all_of_a_place_oldest_first(harness: Harness, size: int) -> None:
    enqueue(harness, *names(7))
    pages = list(harness.broker.pages("low", size=size))
    assert [raw for page in pages for raw in page] == harness.broker.peek("low", 100)
    assert max(map(len, pages)) <= size
    assert list(harness.broker.pages("high", size=size)) == []
