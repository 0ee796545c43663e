"""Jobs that another program pushed with a plain list command are processed like our own."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from fileq.brokers.types import CancelResult, EnqueueResult, Revival, Revived
from fileq.core.job import State, Version
from fileq.core.settlement import SettleResult, Verb, complete, release
from fileq.testing.conformance.builders import (
    EVERY_SETTLEMENT,
    an_entry,
    burial,
    claim_one,
    claims_of,
    counter,
    drift,
    enqueue,
    expire_leases,
    failed,
    foreign,
    has_record,
    ids_in,
    job_of,
    ledger_entry,
    names,
    places_of,
    raws_in,
    reap_all,
    record_of,
    running,
    settle,
)
from fileq.testing.conformance.harness import Harness

ODD_IDS = {
    "a quote": 'say "a"',
    "a backslash": "a\\b",
    "a newline": "a\nb",
    "a control character": "a\x01b",
    "unicode": "ünï-日本-🗂",
    "a line separator": "a\u2028b",
    "colons": "a:b:c",
    "glob characters": "a*?[b]",
    "a percent sign": "100%s",
    "braces": "{a}",
    "a blank": "a b",
    "an apostrophe": "o'clock",
    "a thousand characters": "x" * 1000,
    "what looks like JSON": '","filepath":"',
}
each_odd_id = pytest.mark.parametrize("id", ODD_IDS.values(), ids=ODD_IDS.keys())

Spell = Callable[[dict[str, Any]], bytes]
SPELLINGS: dict[str, Spell] = {
    "compact": lambda job: json.dumps(job, separators=(",", ":")).encode(),
    "spaced": lambda job: json.dumps(job).encode(),
    "indented": lambda job: json.dumps(job, indent=2).encode(),
    "in reverse order": lambda job: json.dumps(dict(reversed(job.items()))).encode(),
    "sorted": lambda job: json.dumps(job, sort_keys=True).encode(),
    "with a newline at its end": lambda job: json.dumps(job).encode() + b"\n",
    "with blanks around it": lambda job: b" \t" + json.dumps(job).encode() + b"  ",
    "in plain UTF-8": lambda job: json.dumps({**job, "filepath": "/d/ü"}, ensure_ascii=False).encode(),
    "with an id in another object before its own": lambda job: json.dumps({"x_nested": {"id": "no"}, **job}).encode(),
}
each_spelling = pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS.keys())


@each_spelling
def test_any_spelling_of_the_eight_fields_is_a_job(harness: Harness, spell: Spell) -> None:
    raw = spell(json.loads(foreign("a")))
    harness.push_raw("high", raw)
    claim = claim_one(harness)
    assert claim.raw == raw
    assert claim.job is not None, claim.defect
    assert (claim.id, job_of(claim).filesize, claim.queue, claim.claimed_ms) == ("a", 4096, "high", harness.clock.ms)
    record = record_of(harness, "a")
    assert (record.state, record.raw, record.queue, record.slot) == (State.RUNNING, raw, "high", "w1")
    assert record.created_ms == harness.clock.ms
    settle(harness, complete(claim))
    assert raws_in(harness, "completed") == [raw]
    assert record_of(harness, "a").state is State.COMPLETED
    assert drift(harness) == 0


PARTIAL = {
    "a type": b'{"id":"a","type":"t"}',
    "a type and a payload": b'{"type": "t", "payload": {"n": 1}, "id": "a", "x_note": "kept"}',
    "a path": b'{"id":"a","filepath":"/data/a.pdf"}',
    "a path and a type": b'{"filepath": "/data/a.pdf", "retries": 1, "id": "a", "type": "t"}',
}


@pytest.mark.parametrize("raw", PARTIAL.values(), ids=PARTIAL.keys())
def test_a_job_needs_only_an_id_and_a_path_or_a_type(harness: Harness, raw: bytes) -> None:
    harness.push_raw("high", raw)
    claim = claim_one(harness)
    job, given = job_of(claim), json.loads(raw)
    assert (claim.raw, claim.queue, job.id, job.type) == (raw, "high", "a", given.get("type"))
    assert (job.filepath, job.filesize, job.priority) == (given.get("filepath", ""), 0, "low")
    assert (job.retries, job.creation_time, job.trace_id, job.span_id) == (given.get("retries", 0), "", "", "")
    settle(harness, release(claim))
    assert raws_in(harness, "high") == [raw]
    harness.broker.deregister([claim_one(harness).slot])
    assert raws_in(harness, "high") == [raw]
    settle(harness, failed(claim_one(harness), delay_ms=0))
    harness.broker.promote()
    [again] = raws_in(harness, "high")
    assert list(json.loads(again))[:8] == list(json.loads(foreign("a")))
    assert json.loads(again).items() >= {**given, "retries": job.retries + 1}.items()
    settle(harness, complete(claim_one(harness)))
    assert (places_of(harness, "a"), drift(harness)) == (["completed"], 0)


@pytest.mark.parametrize("raw", PARTIAL.values(), ids=PARTIAL.keys())
def test_a_copy_with_few_fields_goes_back_as_a_job(harness: Harness, raw: bytes) -> None:
    harness.push_raw("high", foreign("a"))
    settle(harness, complete(claim_one(harness)))
    harness.push_raw("high", raw)
    harness.broker.deregister([claim_one(harness).slot])
    record = record_of(harness, "a")
    assert (record.state, record.raw, record.queued) == (State.PENDING, raw, 1)
    assert (raws_in(harness, "high"), drift(harness)) == ([raw], 0)


def test_a_job_with_few_fields_can_be_dead_and_revived(harness: Harness) -> None:
    harness.push_raw("high", raw := PARTIAL["a type"])
    settle(harness, burial(claim_one(harness)))
    [dead] = raws_in(harness, "dead_letter")
    assert harness.broker.revive([Revival(dead, "a", raw, "low")]) == [Revived(True)]
    settle(harness, complete(claim_one(harness)))
    assert (raws_in(harness, "completed"), drift(harness)) == ([raw], 0)


@each_odd_id
def test_any_id_works_from_claim_to_completion(harness: Harness, id: str) -> None:
    harness.push_raw("low", foreign(id))
    claim = claim_one(harness)
    assert claim.id == claim.record_id == id
    settle(harness, failed(claim))
    harness.advance(1)
    harness.broker.promote()
    claim = claim_one(harness)
    assert (claim.id, job_of(claim).retries) == (id, 1)
    assert settle(harness, complete(claim)) is SettleResult.DONE
    record = record_of(harness, id)
    assert (record.id, record.state, record.attempt_count) == (id, State.COMPLETED, 2)
    assert places_of(harness, id) == ["completed"]
    assert counter(harness, "adopted") == 1
    assert drift(harness) == 0


@each_odd_id
def test_any_id_can_be_enqueued_and_cancelled(harness: Harness, id: str) -> None:
    assert enqueue(harness, id).results == (EnqueueResult.ENQUEUED,)
    assert enqueue(harness, id).results == (EnqueueResult.DUPLICATE,)
    assert harness.broker.cancel([id]) == [CancelResult.CANCELLED]
    assert places_of(harness, id) == ["cancelled"]
    assert drift(harness) == 0


@each_odd_id
def test_any_id_is_kept_by_the_ledger(harness: Harness, id: str) -> None:
    """A foreign job whose handler works in place: the ledger knows the new version under its id."""
    harness.push_raw("low", foreign(id))
    settle(harness, complete(claim_one(harness), leaves=Version(b"/data/a", "v2")))
    entry = ledger_entry(harness, b"/data/a")
    assert entry.versions == (("v2", id),)
    assert harness.broker.enqueue([an_entry("b", version=Version(b"/data/a", "v2"))]).results == (EnqueueResult.KNOWN,)
    assert harness.broker.enqueue([an_entry("c", version=Version(b"/data/a", "v3"))]).results == (
        EnqueueResult.ENQUEUED,
    )
    entry = ledger_entry(harness, b"/data/a")
    assert entry.versions == (("v3", "c"), ("v2", id))


def test_it_has_no_record_before_it_is_claimed(harness: Harness) -> None:
    harness.push_raw("low", foreign("a"))
    assert not has_record(harness, "a")
    assert ids_in(harness, "low") == ["a"]


def test_it_keeps_its_order_among_our_own(harness: Harness) -> None:
    enqueue(harness, "a")
    harness.push_raw("low", foreign("b"))
    enqueue(harness, "c")
    assert [claim.id for claim in claims_of(harness, "w1", "w2", "w3")] == ["a", "b", "c"]


def test_unknown_fields_survive_retry_release_reaping_and_death(harness: Harness) -> None:
    raw = foreign("a", x_one={"deep": [1, 2.50, None]}, **{"x two": "ü"})
    harness.push_raw("low", raw)
    settle(harness, failed(claim_one(harness), delay_ms=0))
    harness.broker.promote()
    settle(harness, release(claim_one(harness)))
    claim_one(harness)
    expire_leases(harness)
    reap_all(harness)
    settle(harness, burial(claim_one(harness)))
    [dead] = raws_in(harness, "dead_letter")
    job = json.loads(dead)
    assert (job["x_one"], job["x two"]) == ({"deep": [1, 2.50, None]}, "ü")
    assert (job["retries"], job["recoveries"]) == (1, 1)
    assert drift(harness) == 0


@pytest.mark.parametrize("verb", EVERY_SETTLEMENT)
def test_copies_each_run_and_are_each_accounted_for(harness: Harness, verb: Verb) -> None:
    for _ in range(3):
        harness.push_raw("low", foreign("a"))
    assert drift(harness) == -3
    claims = claims_of(harness, "w1", "w2", "w3")
    assert [claim.id for claim in claims] == ["a"] * 3
    assert counter(harness, "adopted") == 3
    assert drift(harness) == 0
    for claim in claims:
        assert settle(harness, EVERY_SETTLEMENT[verb](claim)) is SettleResult.DONE
    assert len(places_of(harness, "a")) == 3
    assert drift(harness) == 0


@pytest.mark.parametrize("verb", EVERY_SETTLEMENT)
def test_copies_settled_in_one_call_are_each_accounted_for(harness: Harness, verb: Verb) -> None:
    for i in range(3):
        harness.push_raw("low", foreign("a", x_copy=i))
    claims = claims_of(harness, "w1", "w2", "w3")
    harness.broker.settle_and_claim([EVERY_SETTLEMENT[verb](claim) for claim in claims], [])
    assert len(places_of(harness, "a")) == 3
    record = record_of(harness, "a")
    assert record.attempt_count + record.deferred_count == 3
    assert drift(harness) == 0


def test_a_copy_of_our_own_job_runs_beside_it(harness: Harness) -> None:
    claim = running(harness, "a", "w1")
    harness.push_raw("low", claim.raw)
    copy = claim_one(harness, "w2")
    assert copy.raw == claim.raw
    assert places_of(harness, "a") == ["processing:w1", "processing:w2"]
    assert [settle(harness, complete(c)) for c in (claim, copy)] == [SettleResult.DONE] * 2
    assert (counter(harness, "produced"), counter(harness, "adopted"), counter(harness, "completed")) == (1, 1, 2)
    assert drift(harness) == 0


def test_settling_one_copy_does_not_change_the_others(harness: Harness) -> None:
    for _ in range(2):
        harness.push_raw("low", foreign("a"))
    first, second = claims_of(harness, "w1", "w2")
    settle(harness, complete(first))
    assert places_of(harness, "a") == ["completed", "processing:w2"]
    expire_leases(harness)
    reap_all(harness)
    assert settle(harness, complete(second)) is SettleResult.FENCED
    assert sorted(places_of(harness, "a")) == ["completed", "low"]
    assert drift(harness) == 0


def test_a_copy_of_a_job_that_waits_is_counted_no_matter_which_is_claimed_first(harness: Harness) -> None:
    enqueue(harness, "a", queue="low")
    harness.push_raw("high", foreign("a"))
    assert drift(harness) == -1
    claims = claims_of(harness, "w1", "w2")
    assert [claim.queue for claim in claims] == ["high", "low"]
    assert drift(harness) == 0
    for claim in claims:
        settle(harness, complete(claim))
    assert drift(harness) == 0


def test_an_id_that_another_program_used_is_a_duplicate_once_it_was_claimed(harness: Harness) -> None:
    harness.push_raw("low", foreign("a"))
    claim_one(harness)
    assert enqueue(harness, "a").results == (EnqueueResult.DUPLICATE,)


def test_a_thousand_pushed_by_another_program(harness: Harness) -> None:
    for id in names(1000):
        harness.push_raw("low", foreign(id))
    claims = claims_of(harness, *names(1000, "slot"))
    assert [claim.id for claim in claims] == names(1000)
    assert set(harness.broker.settle_and_claim([complete(claim) for claim in claims], []).settled) == {
        SettleResult.DONE
    }
    assert counter(harness, "adopted") == 1000
    assert drift(harness) == 0


def test_optional_fields_are_decoded(harness: Harness) -> None:
    harness.push_raw("low", foreign("a", type="resize", payload={"w": 3}, max_retries=7, timeout=1.5, recoveries=2))
    job = job_of(claim_one(harness))
    assert (job.type, job.payload_value) == ("resize", {"w": 3})
    assert (job.max_retries, job.timeout, job.recoveries) == (7, 1.5, 2)
