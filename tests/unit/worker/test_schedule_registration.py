"""The schedules of configurations on a memory broker: defined, changed, paused, removed, and repaired after a kill."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from fileq.brokers.schedule_definitions import KIND, broker_now_ms, define, known_schedules, repair, resume
from fileq.client.schedule_changes import run_now
from fileq.config import config_from
from fileq.core.events import ScheduleDefined, ScheduleRemoved, ScheduleUnclaimed
from fileq.core.schedule import ScheduleDefinition, ScheduleDocument, encode_document
from fileq.worker.scheduler import CLAIM_S, LOOK_EVERY_S, ScheduleFiring
from tests.support.schedule_bench import EACH_MINUTE, MINUTE_MS, START_MS, ScheduleBench


@pytest.fixture
def bench() -> ScheduleBench:
    return ScheduleBench()


def test_a_changed_text_keeps_last_and_next(bench: ScheduleBench) -> None:
    bench.run(bench.worker(s=EACH_MINUTE))
    bench.run(bench.worker(s=EACH_MINUTE), MINUTE_MS)
    before = bench.state()
    bench.clock.pass_ms(90_000)
    changed = bench.worker(s={**EACH_MINUTE, "payload": {"a": 2}, "overlap": "allow"})
    bench.broker.fire = lambda fire: pytest.fail("too early")  # type: ignore[method-assign]
    config = config_from({"schedules": {"s": {**EACH_MINUTE, "payload": {"a": 2}, "overlap": "allow"}}})
    ScheduleFiring(config, bench.broker).keep_own(bench.clock.ms)
    after = bench.state()
    assert after.revision != before.revision
    assert (after.next_ms, after.last_ms, after.runs, after.last_job_id) == (
        *(before.next_ms, before.last_ms, before.runs, before.last_job_id),
    )
    del bench.broker.fire  # type: ignore[attr-defined]
    bench.run(changed)
    assert bench.state().runs == 2, "the slot that was due already is not forgotten"


def test_a_run_by_hand_is_no_change_that_a_worker_undoes(bench: ScheduleBench) -> None:
    bench.run(bench.worker(s=EACH_MINUTE))
    run_now(bench.broker, config_from({}), "s")
    noted = known_schedules(bench.broker)["s"]
    bench.take()
    bench.run(bench.worker(s=EACH_MINUTE))
    assert [event for event in bench.take() if isinstance(event, ScheduleDefined)] == []
    assert known_schedules(bench.broker)["s"] == noted
    assert noted.document is not None
    assert noted.document.by_hand_id.startswith("sched.s.manual.")


def test_other_times_have_another_next_slot(bench: ScheduleBench) -> None:
    bench.run(bench.worker(s={"cron": "@yearly", "type": "t"}))
    bench.run(bench.worker(s=EACH_MINUTE))
    assert bench.state().next_ms == START_MS + MINUTE_MS


def test_resume_makes_up_nothing(bench: ScheduleBench) -> None:
    worker = bench.worker(s={**EACH_MINUTE, "missed": "all:9", "overlap": "allow"})
    bench.run(worker)
    bench.broker.pause_schedule("s")
    bench.run(worker, 10 * MINUTE_MS)
    assert resume(bench.broker, known_schedules(bench.broker)["s"], bench.clock.ms)
    bench.run(worker)
    assert bench.ids == []
    bench.run(worker, MINUTE_MS)
    assert (bench.ids, bench.state().missed) == (["sched.s.20270115T081100Z"], 0)


def test_paused_in_the_configuration_pauses_and_an_operator_can_resume(bench: ScheduleBench) -> None:
    paused = {**EACH_MINUTE, "paused": True}
    bench.run(bench.worker(s=paused))
    assert bench.state().is_paused
    resume(bench.broker, known_schedules(bench.broker)["s"], bench.clock.ms)
    bench.run(bench.worker(s=paused), MINUTE_MS)
    assert (bench.state().is_paused, bench.state().runs) == (False, 1), "the text is the same: nothing changes"
    bench.run(bench.worker(s={**EACH_MINUTE, "paused": False}))
    bench.run(bench.worker(s=paused))
    assert bench.state().is_paused
    bench.run(bench.worker(s=EACH_MINUTE))
    assert not bench.state().is_paused
    bench.broker.pause_schedule("s")
    bench.run(bench.worker(s={**EACH_MINUTE, "payload": {"a": 1}}))
    assert bench.state().is_paused, "an operator paused it, and the configuration says nothing else than before"


class Killed(Exception):
    pass


@pytest.mark.parametrize("before", ["put_document", "define_schedule", "pause_schedule"])
@pytest.mark.parametrize("is_paused", [False, True])
def test_what_a_kill_between_two_steps_leaves_is_repaired(bench: ScheduleBench, before: str, is_paused: bool) -> None:
    definition = ScheduleDefinition(cron="* * * * *", type="t", overlap="allow")
    document = ScheduleDocument(definition=definition, is_paused=is_paused)

    def killed(*_: object) -> Any:
        raise Killed

    setattr(bench.broker, before, killed)
    with contextlib.suppress(Killed):
        define(bench.broker, "s", document, bench.clock.ms)
    delattr(bench.broker, before)
    worker = bench.worker()
    bench.run(worker)
    bench.run(worker, round(LOOK_EVERY_S * 1000))
    if before == "put_document":
        assert known_schedules(bench.broker) == {}
        return
    assert bench.state().is_paused is is_paused
    bench.run(worker, MINUTE_MS)
    assert bench.state().runs == (not is_paused) * (1 + (before == "pause_schedule"))


def test_a_state_that_a_killed_remove_left_is_removed(bench: ScheduleBench) -> None:
    bench.broker.define_schedule("s", "r", START_MS)
    bench.run(bench.worker())
    assert bench.broker.schedules() == {}


def test_a_repair_after_a_kill_keeps_a_slot_that_is_due(bench: ScheduleBench) -> None:
    definition = ScheduleDefinition(cron="* * * * *", type="t")
    define(bench.broker, "s", ScheduleDocument(definition=definition), bench.clock.ms)
    changed = ScheduleDocument(definition=ScheduleDefinition(cron="* * * * *", type="u"))
    bench.broker.put_document(KIND, "s", encode_document(changed))
    bench.clock.pass_ms(MINUTE_MS)
    repair(bench.broker, known_schedules(bench.broker)["s"], bench.clock.ms)
    assert bench.state().next_ms == START_MS + MINUTE_MS
    assert known_schedules(bench.broker)["s"].is_complete


def test_a_schedule_that_no_configuration_has_any_more_is_removed_after_a_while(bench: ScheduleBench) -> None:
    bench.run(bench.worker(s=EACH_MINUTE))
    new = bench.worker(other=EACH_MINUTE)
    bench.run(new)
    assert ScheduleUnclaimed("s", CLAIM_S) in bench.take()
    bench.run(new, round(CLAIM_S * 1000) - 1)
    assert "s" in bench.broker.schedules()
    bench.run(new, round(LOOK_EVERY_S * 1000))
    assert (list(known_schedules(bench.broker)), ScheduleRemoved("s") in bench.take()) == (["other"], True)


def test_workers_with_different_configurations_keep_each_others_schedules(bench: ScheduleBench) -> None:
    one = bench.worker(a=EACH_MINUTE)
    bench.run(one)
    other = bench.worker(b=EACH_MINUTE)
    for _ in range(20):
        bench.run(one, MINUTE_MS)
        bench.run(other)
    assert list(known_schedules(bench.broker)) == ["a", "b"]
    assert not any(isinstance(event, ScheduleRemoved) for event in bench.take())


def test_schedules_of_programs_stay_without_a_configuration(bench: ScheduleBench) -> None:
    definition = ScheduleDefinition(cron="* * * * *", type="t")
    define(bench.broker, "p", ScheduleDocument(definition=definition), broker_now_ms(bench.broker))
    worker = bench.worker()
    for _ in range(10):
        bench.run(worker, MINUTE_MS)
    assert bench.state("p").runs == 1


def test_the_configuration_takes_over_a_schedule_of_a_program(bench: ScheduleBench) -> None:
    definition = ScheduleDefinition(cron="@yearly", type="t")
    define(bench.broker, "s", ScheduleDocument(definition=definition), bench.clock.ms)
    bench.run(bench.worker(s=EACH_MINUTE))
    document = known_schedules(bench.broker)["s"].document
    assert document is not None
    assert document.is_configured
