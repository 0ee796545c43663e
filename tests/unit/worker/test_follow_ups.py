"""What follows from a settlement, through a pump on the memory broker: requests, outputs, on_completed, on_dead."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from fileq.brokers.batches import NewBatch
from fileq.brokers.types import Entry, Record, Revival
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import Claim, State, decode, encode, file_job, typed_job
from fileq.core.job_options import JobOptions, Moment
from fileq.core.outcome import (
    Cancelled,
    Changed,
    Died,
    Done,
    Failed,
    FollowUpRequest,
    Made,
    Output,
    Released,
    follow_up_id,
)
from fileq.core.settlement import complete, skip_vanished
from fileq.worker.reaper import Reaper
from fileq.worker.settlements import FollowUps
from tests.support.pump_setup import NOW, TTL_S, PumpSetup

MADE = Made((FollowUpRequest(JobOptions(id="next"), type="index", payload=b'{"n":1}'),), (Output(b"/out/a", 3, "3-1"),))
DISTANT_MS = 4_000_000_000_000
CHECKSUM = "fileq.handlers:checksum"
ROUTE = {"match": "**/*", "use": CHECKSUM, "on_completed": "tell", "on_dead": "mourn"}


def record(setup: PumpSetup, id: str) -> Record | None:
    [found] = setup.broker.records([id])
    return found


def jobs_in_queue(setup: PumpSetup) -> dict[str, Any]:
    return {job.type or "": job for job in map(decode, setup.broker.peek("low", 10))}


@pytest.fixture
def told() -> PumpSetup:
    """A worker whose only route has on_completed and on_dead."""
    return PumpSetup(count=1, handlers=[ROUTE])


def end(setup: PumpSetup, ran: Any, id: str = "a") -> None:
    setup.enqueue(id)
    setup.pump.turn()
    setup.executor.end(ran)
    setup.pump.turn(may_claim=False)


def test_a_planted_id_keeps_no_follow_up_out(told: PumpSetup) -> None:
    """A3: the ids of follow-ups can be computed from the id of the job before it ends."""
    ids = follow_up_id("a", 1), follow_up_id("a", "on_completed")
    for id in ids:
        told.broker.enqueue([Entry(typed_job("plant", None, priority="low", now=NOW, id=id), "low", delay_ms=9_999)])
    end(told, Done(made=Made((FollowUpRequest(JobOptions(id=ids[0]), type="index"),))))
    assert {type: job.id for type, job in jobs_in_queue(told).items()} == {"index": ids[0], "tell": ids[1]}
    parent = record(told, "a")
    assert parent is not None
    assert parent.follow_ups == ids


def test_a_planted_id_keeps_no_follow_up_out_that_joins_the_batch_of_its_job() -> None:
    setup = PumpSetup(count=1)
    id = follow_up_id("a", 1)
    setup.broker.enqueue([Entry(typed_job("plant", None, priority="low", now=NOW, id=id), "low", delay_ms=9_999)])
    setup.broker.create_batch(NewBatch("b"))
    job = file_job(setup.root + b"/a", size=1, priority="low", now=NOW, id="a").but(batch_id="b")
    setup.broker.enqueue([Entry(job, "low", joins=True)])
    setup.pump.turn()
    setup.executor.end(Done(made=Made((FollowUpRequest(JobOptions(id=id), type="index", joins=True),))))
    setup.pump.turn(may_claim=False)
    assert jobs_in_queue(setup)["index"].id == id
    found = record(setup, id)
    assert found is not None
    assert found.batch == "b"


def test_requested_jobs_are_enqueued_when_the_job_is_completed() -> None:
    setup = PumpSetup(count=1)
    end(setup, Done(made=MADE))
    job = jobs_in_queue(setup)["index"]
    assert (job.id, job.parent_id, job.priority, job.payload_value) == ("next", "a", "low", {"n": 1})
    parent = record(setup, "a")
    assert parent is not None
    assert (parent.follow_ups, parent.outputs) == (("next",), MADE.outputs)
    assert setup.events.fields("job.followed")["follow_ups"] == 1


@pytest.mark.parametrize(
    "ran", [Failed("x", "X"), Failed("x", "X", is_permanent=True), Died("x"), Cancelled(), Released()], ids=repr
)
def test_an_attempt_that_does_not_complete_its_job_enqueues_nothing(ran: Any) -> None:
    setup = PumpSetup(count=1)
    end(setup, ran)
    assert record(setup, "next") is None


def test_an_attempt_whose_job_was_lost_enqueues_nothing() -> None:
    setup = PumpSetup(count=1)
    setup.enqueue("a")
    setup.pump.turn()
    setup.reap_all()
    setup.executor.end(Done(made=MADE))
    setup.pump.turn(may_claim=False)
    assert setup.events.count("job.fenced") == 1
    assert record(setup, "next") is None


def test_a_superseded_job_has_no_follow_up(told: PumpSetup) -> None:
    told.enqueue_version("f", "1-1", "old")
    told.pump.turn()
    told.enqueue_version("f", "2-2", "new")
    told.executor.end(Changed("2-2"))
    told.pump.turn(may_claim=False)
    told.pump.turn(may_claim=False)
    assert told.state("old") is State.COMPLETED
    assert "tell" not in jobs_in_queue(told)


def test_a_job_that_is_completed_without_running_is_followed_by_nothing(told: PumpSetup) -> None:
    job = file_job(b"/data/a", size=1, priority="low", now=NOW, id="a")
    claim = Claim("w", 1, "low", encode(job), job, "a")
    follow_ups = FollowUps(told.routes, told.config.paths)
    for settlement in (complete(claim, superseded=True), skip_vanished(claim)):
        assert follow_ups.added(settlement, 0) is settlement
    assert [one.job.type for one in follow_ups.added(complete(claim), 0).follow_ups] == ["tell"]


def test_a_repeated_settlement_enqueues_once() -> None:
    setup = PumpSetup(count=1)
    setup.enqueue("a")
    setup.pump.turn()
    setup.executor.end(Done(made=MADE))
    setup.broker.loses_replies = 1
    for _ in range(3):
        with suppress(BrokerUnavailable):
            setup.pump.turn(may_claim=False)
    assert setup.state("a") is State.COMPLETED
    assert len(setup.broker.peek("low", 10)) == 1
    assert setup.broker.census().drift == 0


def test_a_requested_file_is_known_to_the_ledger_under_the_producers_path() -> None:
    setup = PumpSetup(count=1)
    made = Made((FollowUpRequest(JobOptions("high", id="next"), path=b"/data/b", size=3, signature="3-1"),))
    end(setup, Done(made=made))
    [raw] = setup.broker.peek("high", 10)
    job = decode(raw)
    assert (job.path, job.filesize, job.signature, job.priority) == (b"/data/b", 3, "3-1", "high")
    [entry] = setup.broker.lookup([b"/data/b"])
    assert entry is not None
    assert entry.job_of("3-1") == "next"


def test_a_delayed_follow_up_is_scheduled() -> None:
    setup = PumpSetup(count=1)
    end(setup, Done(made=Made((FollowUpRequest(JobOptions(id="next", delay_ms=60_000), type="index"),))))
    found = record(setup, "next")
    assert found is not None
    assert found.state is State.SCHEDULED


def test_a_follow_up_has_the_tags_and_the_deadline_that_its_handler_gave() -> None:
    setup = PumpSetup(count=1)
    request = FollowUpRequest(JobOptions(id="next", deadline=Moment(DISTANT_MS), tags={"tenant": "acme"}), type="index")
    end(setup, Done(made=Made((request,))))
    job = jobs_in_queue(setup)["index"]
    assert (job.deadline_ms, job.tag_values) == (DISTANT_MS, {"tenant": "acme"})


def test_on_completed_gets_the_id_the_path_and_the_result(told: PumpSetup) -> None:
    end(told, Done(b'{"pages":3}'))
    job = jobs_in_queue(told)["tell"]
    ending = {"id": "a", "type": None, "path": "/data/a", "error": None, "result": {"pages": 3}}
    assert (job.payload_value, job.parent_id) == (ending, "a")


def test_on_dead_gets_the_error(told: PumpSetup) -> None:
    end(told, Failed("ValueError: x", "ValueError", is_permanent=True))
    ending = {"id": "a", "type": None, "path": "/data/a", "error": "ValueError: x", "result": None}
    assert jobs_in_queue(told)["mourn"].payload_value == ending


def test_a_failure_that_is_retried_tells_nobody(told: PumpSetup) -> None:
    end(told, Failed("x", "X"))
    assert jobs_in_queue(told) == {}


def test_a_name_that_is_not_utf8_is_in_the_payload_as_base64(told: PumpSetup) -> None:
    told.broker.enqueue([Entry(file_job(b"/data/\xff", size=1, priority="low", now=NOW, id="a"), "low")])
    told.pump.turn()
    told.executor.end(Done())
    told.pump.turn(may_claim=False)
    payload = jobs_in_queue(told)["tell"].payload_value
    assert (payload["path"], payload["path_b64"]) == ("/data/\\xff", "L2RhdGEv/w==")


def test_a_job_that_is_refused_for_its_deadline_is_mourned() -> None:
    setup = PumpSetup(count=1, handlers=[{"type": "t", "use": CHECKSUM, "on_dead": "mourn"}])
    job = typed_job("t", None, priority="low", now=NOW, id="a").but(deadline="2020-01-01T00:00:00Z")
    setup.broker.enqueue([Entry(job, "low")])
    setup.pump.turn()
    setup.pump.turn(may_claim=False)
    assert setup.state("a") is State.DEAD
    assert jobs_in_queue(setup)["mourn"].payload_value["error"] == "deadline passed"


def test_a_job_without_a_route_has_no_on_dead(told: PumpSetup) -> None:
    told.enqueue_typed("unknown", "a")
    told.pump.turn()
    told.pump.turn(may_claim=False)
    assert told.state("a") is State.DEAD
    assert jobs_in_queue(told) == {}


def test_a_vanished_file_is_mourned(told: PumpSetup) -> None:
    end(told, Failed("file vanished", "FileVanished", is_permanent=True, is_vanished=True))
    assert told.state("a") is State.DEAD
    assert jobs_in_queue(told)["mourn"].payload_value["error"] == "file vanished"


def test_a_job_that_dies_again_after_it_was_put_back_is_mourned_again(told: PumpSetup) -> None:
    end(told, Failed("x", "X", is_permanent=True))
    first = jobs_in_queue(told)["mourn"].id
    raw = told.raw("a")
    told.clocks.advance(1.0)
    told.broker.cancel([first])
    told.broker.revive([Revival(raw, "a", raw, "low")])
    told.pump.turn()
    told.executor.end(Failed("x", "X", is_permanent=True))
    told.pump.turn(may_claim=False)
    second = jobs_in_queue(told)["mourn"].id
    assert first != second


def test_a_reaper_that_buries_a_job_enqueues_its_on_dead(told: PumpSetup) -> None:
    told.routes.is_traced = True
    told.enqueue("a")
    told.pump.turn()
    config = replace(told.config, worker=replace(told.config.worker, max_recoveries=0))
    add = FollowUps(told.routes, config.paths).added
    reaper = Reaper(config, told.broker, add_follow_ups=add, emit=told.events, monotonic=told.clocks.monotonic)
    for _ in range(3):
        reaper.turn()
        told.clocks.advance(TTL_S + 1)
    assert told.state("a") is State.DEAD
    mourn = jobs_in_queue(told)["mourn"]
    assert mourn.payload_value["error"].startswith("its worker died")
    assert mourn.span_id == "", "a span that no process sends can't be a parent"
    assert told.events.count("job.followed") == 1


def test_a_worker_without_any_of_this_adds_nothing_to_its_settlements() -> None:
    setup = PumpSetup(count=1)
    end(setup, Done(b"1"))
    assert (setup.state("a"), setup.events.count("job.followed")) == (State.COMPLETED, 0)
    assert setup.broker.peek("low", 10) == []
