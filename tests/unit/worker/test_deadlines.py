"""Waiting jobs whose deadline has passed: how the worker buries them. The test moves the clock."""

from __future__ import annotations

from msgspec.structs import replace

from fileq.brokers.types import Entry, Revival
from fileq.config.schema import AfterSettings
from fileq.core.job import Job, State, decode, encode, file_job, rfc3339_ms, typed_job
from fileq.testing.conformance.builders import foreign
from fileq.worker.deadlines import IDLE_S, PAGE, Deadlines
from fileq.worker.settlements import FollowUps
from tests.support.pump_setup import NOW, PumpSetup
from tests.support.sqlite_store import change_one_row

CHECKSUM = "fileq.handlers:checksum"
HANDLERS = [{"match": "**/*", "use": CHECKSUM, "on_dead": "mourn"}, {"type": "t", "use": CHECKSUM, "on_dead": "mourn"}]


class DeadlinesSetup(PumpSetup):
    """The loop, routes with an `on_dead`, and a rule for the files of dead jobs. The queue is paused."""

    def __init__(self) -> None:
        super().__init__(count=1, handlers=HANDLERS)
        worker = replace(self.config.worker, after=AfterSettings(dead="delete"))
        self.dead: list[str] = []
        add = FollowUps(self.routes, self.config.paths).added
        self.deadlines = Deadlines(
            replace(self.config, worker=worker),
            self.broker,
            add_follow_ups=add,
            on_dead=self.dead.append,
            emit=self.events,
        )
        self.broker.pause("low")

    def enqueue_jobs(self, *jobs: Job, after_s: float = 10) -> None:
        deadline = rfc3339_ms(self.clocks.wall_ns() // 1_000_000 + round(after_s * 1000))
        self.broker.enqueue([Entry(job.but(deadline=deadline), "low") for job in jobs])

    def mourning(self) -> list[Job]:
        return [job for raw in self.broker.peek("low", 99) if (job := decode(raw)).type == "mourn"]


def typed(id: str) -> Job:
    return typed_job("t", None, priority="low", now=NOW, id=id)


def test_a_waiting_job_dies_at_its_deadline_as_one_that_a_worker_refuses() -> None:
    setup = DeadlinesSetup()
    setup.enqueue_jobs(file_job(b"/data/a", size=1, priority="low", now=NOW, signature="1-2", id="a"))
    assert setup.deadlines.turn() == IDLE_S
    assert setup.state("a") is State.PENDING
    setup.clocks.advance(10)
    assert setup.deadlines.turn() == IDLE_S
    [record] = setup.broker.records(["a"])
    assert record is not None
    assert (record.state, record.error, decode(record.raw).error) == (State.DEAD, *["deadline passed"] * 2)
    assert setup.broker.census().counters["error:DeadlinePassed"] == 1
    [mourn] = setup.mourning()
    assert (mourn.payload_value["error"], record.follow_ups) == ("deadline passed", (mourn.id,))
    assert [order.body for order in setup.broker.orders(60_000)] == [b"bury 1-2\n/data/a"]
    event = setup.events.fields("job.dead")
    assert (event["job_id"], event["error"]) == ("a", "deadline passed")
    assert not {"worker_id", "is_failure", "lost_by"} & event.keys()
    assert (setup.dead, setup.events.count("job.followed")) == (["a"], 1)


def test_each_death_of_a_job_that_is_put_back_has_its_own_on_dead() -> None:
    setup = DeadlinesSetup()
    setup.enqueue_jobs(typed("a"))
    for deaths in (1, 2):
        setup.clocks.advance(10)
        setup.deadlines.turn()
        assert len(setup.mourning()) == deaths
        raw = setup.raw("a")
        setup.broker.revive([Revival(raw, "a", encode(decode(raw).but(error=None, failed_at=None)), "low")])
    assert setup.dead == ["a", "a"]


def test_a_full_batch_is_followed_by_the_next_without_a_pause() -> None:
    setup = DeadlinesSetup()
    setup.enqueue_jobs(*(typed(f"job-{n}") for n in range(PAGE + 1)))
    setup.clocks.advance(10)
    assert [setup.deadlines.turn(), setup.deadlines.turn()] == [0.0, IDLE_S]
    assert setup.broker.census().dead == PAGE + 1


def test_a_job_that_another_worker_claims_first_is_not_reported() -> None:
    setup = DeadlinesSetup()
    setup.enqueue_jobs(typed("a"))
    setup.clocks.advance(10)
    look = setup.broker.overdue

    def overdue_and_claimed(limit: int) -> object:
        found = look(limit)
        setup.broker.resume("low")
        setup.pump.turn()
        return found

    setup.broker.overdue = overdue_and_claimed  # type: ignore[assignment]
    setup.deadlines.turn()
    assert (setup.dead, setup.mourning()) == ([], [])
    assert setup.events.count("job.dead") == 0


def test_bytes_without_a_deadline_that_have_the_record_of_the_job_wait_on() -> None:
    """Another program pushed them under the same id; their claim gave them the record."""
    setup = DeadlinesSetup()
    setup.enqueue_jobs(typed("a"))
    assert setup.raw("a") != foreign("a")
    for table in ("records", "queued"):
        change_one_row(setup.broker, f"UPDATE {table} SET raw = ?", foreign("a"))
    setup.clocks.advance(10)
    setup.deadlines.turn()
    assert setup.state("a") is State.PENDING


def test_a_request_to_look_that_comes_during_a_look_is_kept() -> None:
    setup = DeadlinesSetup()
    look = setup.broker.overdue

    def overdue_and_woken(limit: int) -> object:
        setup.deadlines.wake.set()
        return look(limit)

    setup.broker.overdue = overdue_and_woken  # type: ignore[assignment]
    setup.deadlines.turn()
    assert setup.deadlines.wake.is_set()


def test_what_follows_a_job_that_no_slot_held_is_below_the_span_that_produced_the_job() -> None:
    setup = DeadlinesSetup()
    setup.routes.is_traced = True
    job = typed("a").but(trace_id="0af7651916cd43dd8448eb211c80319c", span_id="b7ad6b7169203331")
    setup.enqueue_jobs(job)
    setup.clocks.advance(10)
    setup.deadlines.turn()
    [mourn] = setup.mourning()
    assert (mourn.trace_id, mourn.span_id) == (job.trace_id, job.span_id)
