"""Bytes that are not a job: claimed like a job, buried unchanged, and in no way of other jobs."""

from collections.abc import Callable

import msgspec
import pytest

from fileq.brokers.types import CancelResult, Revival, Revived
from fileq.core.fingerprint import fingerprint
from fileq.core.job import MAX_DECODED_BYTES, MAX_PARSED_BYTES, Claim, State, encode, raw_id
from fileq.core.settlement import SettleResult, complete, release
from fileq.testing.conformance.builders import (
    UNDECODABLE,
    a_job,
    burial,
    claim_one,
    claims_of,
    counter,
    drift,
    enqueue,
    expire_leases,
    job_of,
    names,
    places_of,
    raws_in,
    reap_all,
    record_of,
    register,
    settle,
    subscribed,
    with_readable_id,
)
from fileq.testing.conformance.harness import Harness

EVERY_RAW = {**UNDECODABLE, **{f"{name}, with an id": raw for name, raw in with_readable_id("a").items()}}

each_raw = pytest.mark.parametrize("raw", EVERY_RAW.values(), ids=EVERY_RAW.keys())


@each_raw
def test_it_is_claimed_with_the_reason_why_it_is_no_job(harness: Harness, raw: bytes) -> None:
    harness.push_raw("low", raw)
    claim = claim_one(harness)
    assert (claim.slot, claim.queue, claim.raw, claim.job) == ("w1", "low", raw, None)
    assert claim.defect
    assert claim.id == raw_id(raw)
    assert counter(harness, "adopted") == 1
    assert drift(harness) == 0


@each_raw
def test_it_is_buried_unchanged_with_the_reason_in_its_record(harness: Harness, raw: bytes) -> None:
    harness.push_raw("high", raw)
    claim = claim_one(harness)
    assert settle(harness, burial(claim, error="not a job", kind="Undecodable")) is SettleResult.DONE
    assert raws_in(harness, "dead_letter") == [raw]
    record = record_of(harness, raw_id(raw))
    assert (record.state, record.raw, record.error, record.queue) == (State.DEAD, raw, "not a job", "high")
    assert record.attempt_count == 1
    assert (counter(harness, "dead"), counter(harness, "error:Undecodable")) == (1, 1)
    assert drift(harness) == 0


@pytest.mark.parametrize("start", ['{"payload":"', '{"id":"a","filepath":"'])
def test_a_job_that_is_too_long_is_buried_without_being_decoded(harness: Harness, start: str) -> None:
    """Decoded, both would be jobs."""
    rest = encode(a_job("a")).decode()[1:]
    if "filepath" in start:
        rest = rest.partition('.pdf",')[2]
    raw = (start + "x" * MAX_DECODED_BYTES + '",' + rest).encode()
    harness.push_raw("low", raw)
    harness.push_raw("low", encode(a_job("b")))
    register(harness, "w1")
    reply = harness.broker.settle_and_claim([], ["w1"])
    [claim] = reply.claims
    if not reply.buried:  # this broker leaves the burial to the slot
        assert (claim.job, claim.raw == raw) == (None, True)
        buried = burial(claim, error=claim.defect, kind="Undecodable", refused=True)
        assert settle(harness, buried) is SettleResult.DONE
        claim = claim_one(harness)
    assert claim.id == "b"
    assert raws_in(harness, "dead_letter") == [raw]
    record = record_of(harness, raw_id(raw))
    kept = b"" if reply.buried else raw
    assert (record.state, record.raw == kept, record.queue, record.slot) == (State.DEAD, True, "low", "w1")
    assert f"it has {len(raw)} bytes; at most {MAX_DECODED_BYTES} are decoded" in record.error
    assert [(attempt.outcome, attempt.error) for attempt in record.attempts] == [("refused", record.error)]
    assert record.fingerprint == fingerprint(record.error)
    assert harness.broker.records(["a"]) == [None]
    counters = {name: counter(harness, name) for name in ("adopted", "consumed", "dead", "failed", "error:Undecodable")}
    assert counters == {"adopted": 2, "consumed": 2, "dead": 1, "failed": 0, "error:Undecodable": 1}
    assert drift(harness) == 0


def padded(start: bytes, size: int) -> bytes:
    """A job with the id 'a' of this many bytes that begins with these."""
    rest = encode(a_job("a")).removeprefix(b'{"id":"a","filepath":"/data/a.pdf",')
    return start + b'"x":"' + b"x" * (size - len(start) - len(rest) - 7) + b'",' + rest


OTHER_FORMS = {
    "another field first": b'{"type":"t","id":"a","filepath":"/data/a.pdf",',
    "a blank": b'{"id": "a","filepath":"/data/a.pdf",',
    "filepath before id": b'{"filepath":"/data/a.pdf","id":"a",',
    "a field between": b'{"id":"a","type":"t","filepath":"/data/a.pdf",',
}


@pytest.mark.parametrize("start", OTHER_FORMS.values(), ids=OTHER_FORMS.keys())
def test_a_long_job_that_does_not_begin_with_id_and_filepath_is_no_job(harness: Harness, start: bytes) -> None:
    """medium, large pushed jobs: parsed on the server, 16 MB in the form of another program stopped it for seconds."""
    longest, longer = padded(start, MAX_PARSED_BYTES), padded(start, MAX_PARSED_BYTES + 1)
    harness.push_raw("low", longer)
    claim = claim_one(harness)
    assert (claim.job, claim.id, claim.record_id) == (None, raw_id(longer), None)
    assert f"it has {len(longer)} bytes and does not begin with its id and filepath; at most 1048576" in claim.defect
    settle(harness, burial(claim))
    assert (raws_in(harness, "dead_letter") == [longer], harness.broker.records(["a"])) == (True, [None])
    harness.push_raw("low", longest)
    claim = claim_one(harness)
    assert (claim.id, job_of(claim).id) == ("a", "a")
    settle(harness, complete(claim))
    assert record_of(harness, "a").state is State.COMPLETED
    assert drift(harness) == 0


@pytest.mark.parametrize("id", ["a", 'odd "id"\n\\ ü'])
def test_a_job_that_begins_with_id_and_filepath_may_be_as_long_as_one_of_fileq(harness: Harness, id: str) -> None:
    start = b'{"id":%b,"filepath":"/data/a.pdf",' % msgspec.json.encode(id)
    raw = padded(start, MAX_DECODED_BYTES)
    harness.push_raw("low", raw)
    claim = claim_one(harness)
    assert (job_of(claim).id, claim.raw == raw) == (id, True)
    settle(harness, release(claim))
    settle(harness, complete(claim_one(harness)))
    assert record_of(harness, id).state is State.COMPLETED
    assert drift(harness) == 0


@pytest.mark.parametrize("raw", UNDECODABLE.values(), ids=UNDECODABLE.keys())
def test_its_burial_is_the_only_event_and_has_its_own_id(harness: Harness, raw: bytes) -> None:
    """No handler starts on it. (If an id can be read, a broker may send `job:started` before it knows.)"""
    harness.push_raw("low", raw)
    with subscribed(harness) as next_events:
        settle(harness, burial(claim_one(harness)))
        enqueue(harness, "last")
        assert [(event.event, event.job_id) for event in next_events(2)] == [
            ("job:dead", raw_id(raw)),
            ("job:created", "last"),
        ]


@each_raw
def test_burying_it_twice_buries_it_once(harness: Harness, raw: bytes) -> None:
    harness.push_raw("low", raw)
    settlement = burial(claim_one(harness))
    settle(harness, settlement)
    assert settle(harness, settlement) is SettleResult.DONE_ALREADY
    assert raws_in(harness, "dead_letter") == [raw]
    assert drift(harness) == 0


@each_raw
def test_it_goes_back_unchanged_when_it_is_released(harness: Harness, raw: bytes) -> None:
    harness.push_raw("low", raw)
    enqueue(harness, "b")
    settle(harness, release(claim_one(harness)))
    assert raws_in(harness, "low")[0] == raw
    again = claim_one(harness)
    assert again.raw == raw
    settle(harness, burial(again))
    assert drift(harness) == 0


@each_raw
def test_it_survives_the_death_of_its_worker(harness: Harness, raw: bytes) -> None:
    harness.push_raw("low", raw)
    claim_one(harness)
    expire_leases(harness)
    assert reap_all(harness) == [SettleResult.DONE]
    assert raws_in(harness, "low") == [raw]
    settle(harness, burial(claim_one(harness)))
    assert raws_in(harness, "dead_letter") == [raw]
    assert drift(harness) == 0


@each_raw
def test_it_goes_back_unchanged_when_its_slot_leaves(harness: Harness, raw: bytes) -> None:
    harness.push_raw("low", raw)
    claim_one(harness)
    harness.broker.deregister(["w1"])
    assert raws_in(harness, "low") == [raw]
    settle(harness, burial(claim_one(harness)))
    assert drift(harness) == 0


@pytest.mark.parametrize("raw", UNDECODABLE.values(), ids=UNDECODABLE.keys())
def test_another_programs_scheduled_bytes_are_adopted_once_when_they_are_claimed(harness: Harness, raw: bytes) -> None:
    harness.schedule_raw(raw, harness.clock.ms)
    assert harness.broker.promote().count == 1
    assert (raws_in(harness, "low"), counter(harness, "adopted")) == ([raw], 0)
    settle(harness, burial(claim_one(harness)))
    assert (raws_in(harness, "dead_letter"), counter(harness, "adopted"), drift(harness)) == ([raw], 1, 0)


@each_raw
def test_it_can_be_revived_unchanged(harness: Harness, raw: bytes) -> None:
    harness.push_raw("low", raw)
    settle(harness, burial(claim_one(harness)))
    assert harness.broker.revive([Revival(raw, raw_id(raw), raw, "low")]) == [Revived(True)]
    assert (raws_in(harness, "low"), raws_in(harness, "dead_letter")) == ([raw], [])
    settle(harness, burial(claim_one(harness)))
    assert raws_in(harness, "dead_letter") == [raw]
    assert drift(harness) == 0


@pytest.mark.parametrize("raw", with_readable_id("a").values(), ids=with_readable_id("a").keys())
def test_an_id_that_can_be_read_in_it_does_not_touch_the_job_of_that_id(harness: Harness, raw: bytes) -> None:
    """Garbage with the id of a job that waits in the same queue: the job runs normally."""
    harness.push_raw("low", raw)
    enqueue(harness, "a")
    settle(harness, burial(claim_one(harness)))
    assert record_of(harness, "a").state is State.PENDING
    claim = claim_one(harness)
    assert claim.id == "a"
    assert settle(harness, complete(claim)) is SettleResult.DONE
    record = record_of(harness, "a")
    assert (record.state, record.attempt_count) == (State.COMPLETED, 1)
    assert places_of(harness, "a") == ["completed"]
    assert drift(harness) == 0


@pytest.mark.parametrize("raw", with_readable_id("a").values(), ids=with_readable_id("a").keys())
def test_an_id_that_can_be_read_in_it_leaves_no_record_of_that_id(harness: Harness, raw: bytes) -> None:
    harness.push_raw("low", raw)
    settle(harness, burial(claim_one(harness)))
    assert harness.broker.records(["a"]) == [None]


def test_the_same_bytes_twice_are_buried_twice(harness: Harness) -> None:
    for _ in range(2):
        harness.push_raw("low", b"hello")
    for claim in claims_of(harness, "w1", "w2"):
        settle(harness, burial(claim))
    assert raws_in(harness, "dead_letter") == [b"hello"] * 2
    assert record_of(harness, raw_id(b"hello")).attempt_count == 2
    assert drift(harness) == 0


def test_it_does_not_stop_other_jobs(harness: Harness) -> None:
    enqueue(harness, "a")
    harness.push_raw("low", b"hello")
    enqueue(harness, "b")
    claims = claims_of(harness, "w1", "w2", "w3")
    assert [claim.job and job_of(claim).id for claim in claims] == ["a", None, "b"]


def test_a_thousand_in_one_call(harness: Harness) -> None:
    raws = [b"not a job %d" % i for i in range(1000)]
    for raw in raws:
        harness.push_raw("low", raw)
    claims = claims_of(harness, *names(1000, "slot"))
    assert [claim.raw for claim in claims] == raws
    assert set(harness.broker.settle_and_claim([burial(claim) for claim in claims], []).settled) == {SettleResult.DONE}
    assert raws_in(harness, "dead_letter") == raws
    assert drift(harness) == 0


def test_it_can_only_be_buried_or_released(harness: Harness) -> None:
    harness.push_raw("low", b"hello")
    claim = claim_one(harness)
    with pytest.raises(ValueError, match="not a job"):
        complete(claim)


def _completed(harness: Harness) -> None:
    enqueue(harness, "a")
    settle(harness, complete(claim_one(harness)))


def _dead(harness: Harness) -> None:
    enqueue(harness, "a")
    settle(harness, burial(claim_one(harness)))


def _scheduled(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=3_600_000)


def _running(harness: Harness) -> None:
    enqueue(harness, "a")
    claim_one(harness, "w9")


VICTIMS: dict[str, Callable[[Harness], object]] = {
    "completed": _completed,
    "dead": _dead,
    "scheduled": _scheduled,
    "running": _running,
    "pending": lambda harness: enqueue(harness, "a", queue="low"),
}


def _buried(harness: Harness, claims: list[Claim]) -> None:
    for claim in claims:
        settle(harness, burial(claim))


def _released(harness: Harness, claims: list[Claim]) -> None:
    for claim in reversed(claims):
        settle(harness, release(claim))


def _left(harness: Harness, claims: list[Claim]) -> None:
    harness.broker.deregister([claim.slot for claim in claims])


WAYS: dict[str, Callable[[Harness, list[Claim]], None]] = {"buried": _buried, "released": _released, "left": _left}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())
@pytest.mark.parametrize(
    "raws",
    [["cut off"], ["cut off", "cut off"], ["neither a path nor a type", "cut off"], ["only an id", "null for a size"]],
    ids=str,
)
def test_bytes_that_are_no_job_leave_the_record_of_the_job_that_has_their_id(
    harness: Harness,
    raws: list[str],
    victim: Callable[[Harness], object],
    way: Callable[[Harness, list[Claim]], None],
) -> None:
    """S3: pushed under the id of a job, they replaced the bytes, the time and the expiry in its record: a scheduled job
    could not be cancelled, a dead one not retried, and the record of a completed one never expired."""
    victim(harness)
    before = record_of(harness, "a")
    for name in raws:
        harness.push_raw("high", with_readable_id("a")[name])
    way(harness, claims_of(harness, *(f"g{n}" for n in range(len(raws)))))
    assert record_of(harness, "a") == before
    assert drift(harness) == (0 if way is _buried else -len(raws))
    if way is not _buried:
        _buried(harness, claims_of(harness, *(f"h{n}" for n in range(len(raws)))))
        assert record_of(harness, "a") == before
    assert drift(harness) == 0
    if before.state is State.SCHEDULED:
        assert harness.broker.cancel(["a"]) == [CancelResult.CANCELLED]
        assert places_of(harness, "a") == ["cancelled"]
    elif before.state is State.DEAD:
        assert harness.broker.revive([Revival(before.raw, "a", before.raw, "low")]) == [Revived(True)]
        settle(harness, complete(claim_one(harness)))
    elif before.state is State.COMPLETED:
        harness.advance(int(harness.config.worker.history_ttl * 1000))
        assert harness.broker.records(["a"]) == [None]
    elif before.state is State.PENDING:
        settle(harness, complete(claim_one(harness)))
        assert record_of(harness, "a").state is State.COMPLETED
    assert drift(harness) == 0
