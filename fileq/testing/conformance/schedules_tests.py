"""define_schedule, pause, resume, remove and promote's next_fire_ms: what is known of each schedule."""

import pytest
from msgspec.structs import replace

from fileq.brokers.schedules import Fire, FireResult, ScheduleState
from fileq.core.errors import BrokerError
from fileq.testing.conformance.builders import enqueue, names, snapshot
from fileq.testing.conformance.harness import Harness

ODD = 'revision "1"\n\\ ü'


def state_of(harness: Harness, name: str = "nightly") -> ScheduleState:
    return harness.broker.schedules()[name]


def next_fire_ms(harness: Harness) -> int | None:
    return harness.broker.promote().next_fire_ms


def test_there_are_no_schedules_at_first(harness: Harness) -> None:
    assert harness.broker.schedules() == {}
    assert next_fire_ms(harness) is None
    assert harness.broker.pause_schedule("nightly") is False
    assert harness.broker.resume_schedule("nightly", 1000) is False
    assert harness.broker.remove_schedule("nightly") is False


def test_a_new_schedule_has_its_next_slot(harness: Harness) -> None:
    expected = ScheduleState(ODD, 5000)
    assert harness.broker.define_schedule("nightly", ODD, 5000) == expected
    assert harness.another().schedules() == {"nightly": expected}


def test_the_same_revision_changes_nothing(harness: Harness) -> None:
    harness.broker.define_schedule("nightly", "r1", 5000)
    assert harness.broker.define_schedule("nightly", "r1", 6000) == ScheduleState("r1", 5000)
    assert next_fire_ms(harness) == 5000


def test_another_revision_moves_the_next_slot_and_keeps_the_rest(harness: Harness) -> None:
    harness.broker.define_schedule("nightly", "r1", 5000)
    assert harness.broker.fire(Fire("nightly", "r1", 5000, 6000, missed=3)) is FireResult.PASSED
    harness.broker.pause_schedule("nightly")
    before = state_of(harness)
    assert (before.last_ms, before.missed, before.is_paused) == (5000, 3, True)
    after = harness.broker.define_schedule("nightly", "r2", 9000)
    assert after == replace(before, revision="r2", next_ms=9000) == state_of(harness)


def test_a_next_slot_that_has_been_fired_meanwhile_is_not_set_again(harness: Harness) -> None:
    harness.broker.define_schedule("nightly", "r1", 5000)
    harness.broker.fire(Fire("nightly", "r1", 5000, 6000))
    assert harness.broker.define_schedule("nightly", "r2", 5000) == ScheduleState("r2", 6000, 5000)
    assert harness.broker.define_schedule("nightly", "r3", 5001).next_ms == 5001


def test_the_empty_revision_is_one(harness: Harness) -> None:
    assert harness.broker.define_schedule("nightly", "", 5000) == ScheduleState("", 5000)
    assert harness.broker.define_schedule("nightly", "", 6000) == ScheduleState("", 5000)


def test_a_removed_schedule_starts_from_the_beginning(harness: Harness) -> None:
    harness.broker.define_schedule("nightly", "r1", 5000)
    harness.broker.fire(Fire("nightly", "r1", 5000, 6000, missed=3))
    assert harness.broker.remove_schedule("nightly") is True
    assert (harness.broker.schedules(), next_fire_ms(harness)) == ({}, None)
    assert harness.broker.remove_schedule("nightly") is False
    assert harness.broker.define_schedule("nightly", "r1", 7000) == ScheduleState("r1", 7000)


def test_a_pause_lasts_until_it_is_ended(harness: Harness) -> None:
    harness.broker.define_schedule("nightly", "r1", 5000)
    for _ in range(2):
        assert harness.broker.pause_schedule("nightly") is True
        assert state_of(harness) == ScheduleState("r1", 5000, is_paused=True)
    assert harness.broker.resume_schedule("nightly", 8000) is True
    assert state_of(harness) == ScheduleState("r1", 8000)


def test_a_repeated_resume_does_not_move_the_next_slot(harness: Harness) -> None:
    """Otherwise a slot that fired since would fire again."""
    harness.broker.define_schedule("nightly", "r1", 5000)
    assert harness.broker.resume_schedule("nightly", 4000) is False
    harness.broker.pause_schedule("nightly")
    harness.broker.resume_schedule("nightly", 8000)
    harness.broker.fire(Fire("nightly", "r1", 8000, 9000))
    assert harness.broker.resume_schedule("nightly", 8000) is False
    assert state_of(harness).next_ms == 9000


def test_promote_names_the_earliest_slot_of_all_that_are_not_paused(harness: Harness) -> None:
    for name, next_ms in (("a", 7000), ("b", 5000), ("c", 6000)):
        harness.broker.define_schedule(name, "r1", next_ms)
    assert next_fire_ms(harness) == 5000
    harness.broker.pause_schedule("b")
    assert next_fire_ms(harness) == 6000
    harness.broker.define_schedule("b", "r2", 1000)
    assert next_fire_ms(harness) == 6000
    harness.broker.fire(Fire("c", "r1", 6000, 9000))
    assert next_fire_ms(harness) == 7000
    harness.broker.resume_schedule("b", 6500)
    assert next_fire_ms(harness) == 6500
    harness.broker.remove_schedule("b")
    assert next_fire_ms(harness) == 7000
    for name in ("a", "c"):
        harness.broker.pause_schedule(name)
    assert next_fire_ms(harness) is None


def test_promote_names_it_beside_the_next_due_job(harness: Harness) -> None:
    enqueue(harness, "a", delay_ms=1000)
    harness.broker.define_schedule("nightly", "r1", harness.clock.ms + 10)
    promoted = harness.broker.promote()
    assert (promoted.next_due_ms, promoted.next_fire_ms) == (harness.clock.ms + 1000, harness.clock.ms + 10)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ü", "a\n", "n" * 101])
def test_a_name_that_could_be_mistaken_is_refused(harness: Harness, name: str) -> None:
    with pytest.raises(BrokerError, match=r"a name must match \[A-Za-z0-9"):
        harness.broker.define_schedule(name, "r1", 5000)
    assert harness.broker.schedules() == {}


def test_schedules_change_no_job_and_no_counter(harness: Harness) -> None:
    enqueue(harness, *names(3))
    before = snapshot(harness, *names(3))
    harness.broker.define_schedule("nightly", "r1", 5000)
    harness.broker.fire(Fire("nightly", "r1", 5000, 6000, missed=1))
    harness.broker.pause_schedule("nightly")
    harness.broker.resume_schedule("nightly", 7000)
    harness.broker.remove_schedule("nightly")
    assert snapshot(harness, *names(3)) == before
