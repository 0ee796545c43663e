"""Which slots of a schedule fire and which are missed, as tables over (definition, next slot, now)."""

from __future__ import annotations

import pytest

from fileq.core.schedule import (
    NEVER_MS,
    SLOTS_AT_ONCE,
    STEPS_AT_ONCE,
    ScheduleDefinition,
    ScheduleStep,
    decode_document,
    job_id_of,
    job_payload,
    next_slot,
    payload_problem,
    steps,
)

MINUTE_MS = 60_000


def each_minute(**options: object) -> ScheduleDefinition:
    return ScheduleDefinition(cron="* * * * *", type="t", **options)  # type: ignore[arg-type]


def in_minutes(found: list[ScheduleStep]) -> list[tuple[float, float, float, bool, int]]:
    return [
        (step.slot_ms / MINUTE_MS, step.last_ms / MINUTE_MS, step.next_ms / MINUTE_MS, step.is_fired, step.missed)
        for step in found
    ]


@pytest.mark.parametrize(
    ("missed", "within_s", "now_min", "expected"),
    [
        ("last", 600, 9.999, []),  # not due
        ("skip", 600, 10, [(10, 10, 11, True, 0)]),
        ("skip", 600, 10.5, [(10, 10, 11, True, 0)]),  # late, within 10 minutes
        ("skip", 600, 12, [(10, 10, 11, True, 0), (11, 11, 12, True, 0), (12, 12, 13, True, 0)]),
        ("skip", 60, 12, [(10, 11, 12, True, 1), (12, 12, 13, True, 0)]),
        ("skip", 30, 12.6, [(10, 12, 13, False, 3)]),
        ("last", 30, 12.6, [(10, 12, 13, True, 2)]),
        ("last", 30, 10.6, [(10, 10, 11, True, 0)]),
        ("all:2", 30, 12.6, [(10, 11, 12, True, 1), (12, 12, 13, True, 0)]),
        ("all:9", 30, 12.6, [(10, 10, 11, True, 0), (11, 11, 12, True, 0), (12, 12, 13, True, 0)]),
        ("last", 30, 12.1, [(10, 11, 12, True, 1), (12, 12, 13, True, 0)]),  # one made up, one on time
    ],
)
def test_the_steps(missed: str, within_s: float, now_min: float, expected: list[tuple[float, ...]]) -> None:
    definition = each_minute(missed=missed, within_s=within_s)
    assert in_minutes(steps(definition, 10 * MINUTE_MS, round(now_min * MINUTE_MS))) == expected


@pytest.mark.parametrize("missed", ["skip", "last", "all:7"])
@pytest.mark.parametrize("minutes", [0, 1, 99, 100, 999, 1000, 1001, 1006, 1007, 1008, 5000])
def test_every_slot_of_a_long_outage_ends_once(missed: str, minutes: int) -> None:
    definition = each_minute(missed=missed, within_s=90)
    next_ms, now_ms = MINUTE_MS, (1 + minutes) * MINUTE_MS
    fired = count = 0
    while found := steps(definition, next_ms, now_ms):
        assert len(found) <= STEPS_AT_ONCE
        for step in found:
            assert step.slot_ms == next_ms <= step.last_ms < step.next_ms
            assert (step.last_ms - step.slot_ms) / MINUTE_MS + 1 == step.missed + step.is_fired
            assert step.missed <= SLOTS_AT_ONCE + 7
            fired, count, next_ms = fired + step.is_fired, count + step.missed, step.next_ms
    assert next_ms == now_ms + MINUTE_MS
    late = max(0, minutes - 1)  # older than 90 s
    made_up = {"skip": 0, "last": 1, "all:7": 7}[missed]
    assert (fired, count) == (minutes + 1 - max(0, late - made_up), max(0, late - made_up))


def test_a_step_of_the_clock_back_makes_nothing_due() -> None:
    [step] = steps(each_minute(), 10 * MINUTE_MS, 10 * MINUTE_MS)
    assert steps(each_minute(), step.next_ms, 10 * MINUTE_MS - 3_600_000) == []


def test_a_schedule_at_the_end_of_its_times_never_fires_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileq.core.schedule.Cron.times_after", lambda self, ms: iter(()))
    [step] = steps(each_minute(), MINUTE_MS, MINUTE_MS)
    assert (step.is_fired, step.next_ms) == (True, NEVER_MS)


@pytest.mark.parametrize(
    ("now", "last", "was_next", "expected"),
    [
        (10.5, 0, None, 11),  # new
        (10.5, 10, 11, 11),
        (10.5, 7, 8, 8),  # it was due already: judged by the new definition
        (10.5, 30, 31, 31),  # the clock stepped back; slots up to 30 were fired
        (10.5, 0, 500, 11),  # the former one was rarer
    ],
)
def test_the_next_slot_of_a_changed_definition(now: float, last: int, was_next: int | None, expected: int) -> None:
    was_next_ms = None if was_next is None else was_next * MINUTE_MS
    found = next_slot(each_minute(), now_ms=round(now * MINUTE_MS), last_ms=last * MINUTE_MS, was_next_ms=was_next_ms)
    assert found == expected * MINUTE_MS


def test_the_id_and_the_payload_name_the_slot() -> None:
    slot_ms = 1_793_413_805_000
    assert job_id_of("nightly", slot_ms) == "sched.nightly.20261031T023005Z"
    payload = job_payload(ScheduleDefinition(cron="@daily", type="t", payload={"a": 1}), slot_ms, 3)
    assert payload == {"a": 1, "scheduled_for": "2026-10-31T02:30:05.000Z", "missed": 3}


def test_revisions_differ_exactly_if_definitions_do() -> None:
    revisions = [each_minute(**options).revision for options in ({}, {"missed": "skip"}, {"payload": {"a": 1}})]
    assert len(set(revisions)) == 3
    assert each_minute(payload={"a": 1, "b": 2}).revision == each_minute(payload={"b": 2, "a": 1}).revision


def test_what_can_not_be_read_is_a_value_error() -> None:
    for body in (b"", b"{}", b"[1]", b"\xff", b'{"definition": {"cron": 5, "type": "t"}}'):
        with pytest.raises(ValueError, match="its definition can't be read"):
            decode_document(body)


@pytest.mark.parametrize(("payload", "word"), [([1], "mapping"), ("a", "mapping"), ({"missed": 1}, "'missed'")])
def test_a_payload_that_can_not_be_used_is_named(payload: object, word: str) -> None:
    assert word in payload_problem(payload)
    assert payload_problem({"a": 1}) == ""
