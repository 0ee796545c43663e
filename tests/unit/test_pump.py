"""The pump, turn by turn: the memory broker, an executor that does what the test says, a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import Entry, LeaseStatus, TurnReply
from fileq.config import Config, config_from
from fileq.core.breaker import Breaker
from fileq.core.claim import ClaimKey
from fileq.core.errors import BrokerUnavailable
from fileq.core.job import State, Version, file_job, typed_job
from fileq.core.outcome import Cancelled, Changed, Died, Done, Failed, Released
from fileq.core.settlement import Settlement, release
from fileq.handlers.routes import Routes
from fileq.handlers.task import Task
from fileq.worker.pump import Pump
from tests.support.clocks import ManualClocks, RecordedEvents

NOW = datetime(2026, 11, 16, tzinfo=UTC)
TTL_S = 30.0


class Places:
    """An executor in which a task runs until the test ends it."""

    def __init__(self) -> None:
        self.submitted: list[Task] = []
        self.running: dict[ClaimKey, Task] = {}
        self.ended: list[tuple[Task, Any]] = []
        self.cancelled: list[ClaimKey] = []
        self.abandoned: list[ClaimKey] = []

    def fileno(self) -> int:
        raise AssertionError("the pump does not wait")

    def submit(self, tasks: Sequence[Task]) -> None:
        assert not any(task.key in self.running for task in tasks)
        self.submitted += tasks
        self.running |= {task.key: task for task in tasks}

    def collect(self) -> list[tuple[Task, Any]]:
        ended, self.ended = self.ended, []
        return ended

    def next_deadline_s(self) -> float | None:
        return None

    def cancel(self, key: ClaimKey) -> None:
        self.cancelled.append(key)

    def abandon(self, key: ClaimKey) -> None:
        self.abandoned.append(key)
        del self.running[key]

    def quit(self, grace_s: float) -> None:
        for key in list(self.running):
            self.ended.append((self.running.pop(key), Released()))

    def close(self) -> None: ...

    def end(self, ran: Any, *ids: str) -> None:
        """Every task that runs ends so, or those of these jobs."""
        for key in [key for key, task in self.running.items() if not ids or _id_of(task) in ids]:
            self.ended.append((self.running.pop(key), ran))


class Shaky(MemoryBroker):
    """Loses the reply of a turn when told to, after it has been executed; or is away."""

    loses_replies = 0
    is_away = False
    turns = 0

    def settle_and_claim(self, settlements: Sequence[Settlement], slots: Sequence[str]) -> TurnReply:
        if self.is_away:
            raise BrokerUnavailable("away")
        self.turns += 1
        answer = super().settle_and_claim(settlements, slots)
        if self.loses_replies:
            self.loses_replies -= 1
            raise BrokerUnavailable("the reply was lost")
        return answer


class Bench:
    """One pump and all it talks to."""

    broker_class: type[Shaky] = Shaky

    def __init__(self, *, count: int = 2, **breaker: Any) -> None:
        self.hands = ManualClocks()
        self.told = RecordedEvents()
        self.config: Config = config_from(
            {
                "broker": "memory",
                "worker": {"count": count, "heartbeat_ttl": f"{TTL_S}s", "backoff": {"jitter": 0}},
                "producer": {"scan_dir": "/data"},
                "handlers": [{"match": "**/*", "use": "fileq.handlers:checksum"}],
                "circuit_breaker": breaker,
            }
        )
        self.broker = self.broker_class(self.config, clock=lambda: self.hands.wall_ns() // 1_000_000)
        self.places = Places()
        self.breaker = Breaker(self.config.circuit_breaker, clock=self.hands.monotonic)
        routes = Routes.load(self.config, app_dir="")
        self.pump = Pump(
            self.config,
            self.broker,
            self.places,
            routes,
            self.config.paths,
            self.breaker,
            emit=self.told,
            monotonic=self.hands.monotonic,
        )
        self.pump.start()

    def enqueue(self, *ids: str, signature: str | None = None) -> None:
        for id in ids:
            path = b"/data/" + id.encode()
            job = file_job(path, size=1, priority="low", now=NOW, signature=signature, id=id)
            version = Version(path, signature) if signature else None
            self.broker.enqueue([Entry(job, "low", version=version)])

    def state(self, id: str) -> State:
        record = self.broker.records([id])[0]
        assert record is not None
        return record.state

    def submitted(self) -> list[str]:
        return [_id_of(task) for task in self.places.submitted]

    def let_renewal_come(self) -> None:
        self.hands.advance(TTL_S / 3)


def _id_of(task: Task) -> str:
    return task.path.removeprefix(b"/data/").decode()


@pytest.fixture
def bench() -> Bench:
    return Bench()


# turns


def test_a_turn_claims_for_every_free_slot_and_submits(bench: Bench) -> None:
    bench.enqueue("a", "b", "c")
    assert bench.pump.turn() == 2
    assert bench.submitted() == ["a", "b"]
    assert bench.pump.turn() == 0
    assert not bench.pump.is_hungry, "no slot is free: a wake would be in vain"


def test_what_ends_while_it_is_submitted_is_news_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody calls the pump for it: resting now would leave it untold."""
    submit = bench.places.submit

    def submit_and_end(tasks: Sequence[Task]) -> None:
        submit(tasks)
        bench.places.end(Done())

    monkeypatch.setattr(bench.places, "submit", submit_and_end)
    bench.enqueue("a", "b")
    assert bench.pump.turn() == 2
    assert bench.pump.has_news
    bench.pump.turn()
    assert (bench.state("a"), bench.state("b")) == (State.COMPLETED, State.COMPLETED)


def test_what_ended_is_settled_and_its_slots_are_filled_in_one_round_trip(bench: Bench) -> None:
    bench.enqueue("a", "b", "c")
    bench.pump.turn()
    bench.places.end(Done())
    before = bench.broker.turns
    assert bench.pump.turn() == 1
    assert bench.broker.turns == before + 1
    assert [bench.state(id) for id in "abc"] == ["completed", "completed", "running"]
    assert bench.pump.is_hungry


def test_an_idle_turn_without_a_claim_makes_no_round_trip(bench: Bench) -> None:
    before = bench.broker.turns
    bench.pump.turn(may_claim=False)
    assert bench.broker.turns == before


def test_a_quiet_pump_settles_and_claims_nothing(bench: Bench) -> None:
    bench.enqueue("a", "b", "c")
    bench.pump.turn()
    bench.pump.is_quiet = True
    bench.places.end(Done())
    assert bench.pump.turn() == 0
    assert [bench.state(id) for id in "abc"] == ["completed", "completed", "pending"]
    assert bench.pump.slots.is_idle
    bench.pump.finish()
    assert bench.broker.workers() == []


@pytest.mark.parametrize(
    ("ran", "state", "event"),
    [
        (Done(), "completed", "job.completed"),
        (Failed("no", "ValueError"), "retrying", "job.failed"),
        (Failed("no", "Permanent", is_permanent=True), "dead", "job.dead"),
        (Died("SIGKILL"), "pending", "job.recovered"),
        (Cancelled(), "cancelled", "job.cancelled"),
        (Released(), "pending", "job.released"),
    ],
)
def test_every_outcome_is_settled_and_told(ran: Any, state: str, event: str) -> None:
    bench = Bench(count=1)
    bench.enqueue("a")
    bench.pump.turn()
    bench.places.end(ran)
    bench.pump.is_quiet = True
    bench.pump.turn()
    assert bench.state("a") == state
    assert bench.told.count(event) == 1


# lost replies


def test_after_a_lost_reply_a_claim_is_submitted_once(bench: Bench) -> None:
    bench.enqueue("a")
    bench.broker.loses_replies = 1
    with pytest.raises(BrokerUnavailable):
        bench.pump.turn()
    assert bench.submitted() == []
    bench.pump.turn()
    bench.pump.turn()
    assert bench.submitted() == ["a"]


def test_after_a_lost_reply_an_outcome_is_settled_again_with_one_effect_and_never_run_again(bench: Bench) -> None:
    bench.enqueue("a", "b", "c", "d")
    bench.pump.turn()
    bench.places.end(Done())
    bench.broker.loses_replies = 2
    for _ in range(2):
        with pytest.raises(BrokerUnavailable):
            bench.pump.turn()
    bench.pump.turn()
    assert bench.submitted() == ["a", "b", "c", "d"]
    assert bench.broker.store.counters["completed"] == 2
    assert bench.told.count("job.completed") == 2
    assert bench.told.count("job.fenced") == 0


def test_while_the_broker_is_away_outcomes_are_kept(bench: Bench) -> None:
    bench.enqueue("a", "b")
    bench.pump.turn()
    bench.broker.is_away = True
    bench.places.end(Done())
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            bench.pump.turn()
    assert bench.pump.has_news
    bench.broker.is_away = False
    bench.pump.turn()
    assert [bench.state(id) for id in "ab"] == ["completed", "completed"]


def test_a_probe_whose_reply_was_lost_is_asked_for_again() -> None:
    bench = Bench(count=2, min_samples=1, cooldown_period="10s")
    bench.enqueue("a", "b")
    bench.pump.turn()
    bench.places.end(Failed("no", "ValueError", is_permanent=True))
    bench.pump.turn()
    assert bench.breaker.state == "open"
    bench.enqueue("c", "d")
    assert bench.pump.turn() == 0
    bench.hands.advance(10)
    bench.broker.loses_replies = 1
    with pytest.raises(BrokerUnavailable):
        bench.pump.turn()
    assert bench.pump.turn() == 1
    assert bench.submitted() == ["a", "b", "c"]
    bench.places.end(Done())
    bench.pump.turn()
    assert bench.breaker.state == "closed"
    assert {view.info.breaker for view in bench.broker.workers()} == {"closed"}


def test_a_probe_without_a_job_a_stale_result_and_a_shutdown_do_not_decide_the_breaker() -> None:
    bench = Bench(count=2, min_samples=1, cooldown_period="10s")
    bench.enqueue("fails", "stale")
    bench.pump.turn()
    bench.places.end(Failed("no", "ValueError", is_permanent=True), "fails")
    bench.pump.turn()
    bench.hands.advance(10)
    assert [bench.pump.turn(), bench.pump.turn()] == [0, 0], "there is nothing to probe with"
    assert bench.breaker.state == "half-open"
    bench.enqueue("probe", "waits")
    assert bench.pump.turn() == 1
    bench.places.end(Failed("no", "ValueError", is_permanent=True), "stale")
    assert bench.pump.turn() == 0, "one probe at a time"
    assert bench.breaker.state == "half-open"
    bench.pump.cancel_all(0.0)  # a shutdown
    bench.pump.is_quiet = True
    bench.pump.turn()
    assert bench.breaker.state == "half-open"
    assert [bench.state(id) for id in ("probe", "waits")] == ["pending", "pending"]


# heartbeats


def test_heartbeats_are_renewed_at_a_third_of_their_time(bench: Bench) -> None:
    bench.enqueue("a")
    bench.pump.turn()
    for _ in range(9):
        bench.let_renewal_come()
        bench.pump.turn()
    assert bench.broker.suspects() == []
    assert bench.pump.next_due_s() == bench.hands.seconds + TTL_S / 3
    assert bench.submitted() == ["a"]


def test_a_slot_that_is_gone_goes_on_under_a_new_name_and_ends_what_it_ran(bench: Bench) -> None:
    bench.enqueue("a")
    bench.pump.turn()
    [running] = bench.places.running
    names = set(bench.pump.slots.names)
    bench.hands.advance(2 * TTL_S)  # it stood still; a reaper came by
    for suspect in bench.broker.suspects():
        bench.broker.reap(suspect.slot, [release(claim) for claim in suspect.claims])
    assert bench.broker.workers() == []
    bench.pump.turn()
    assert bench.places.abandoned == [running]
    assert bench.told.count("job.fenced") == 1
    assert not names & set(bench.pump.slots.names)
    assert {view.slot for view in bench.broker.workers()} == set(bench.pump.slots.names)
    assert bench.submitted() == ["a", "a"], "it was back in its queue, and this worker may have it again"


def test_an_outcome_that_comes_after_its_slot_is_gone_is_fenced_and_told(bench: Bench) -> None:
    bench.enqueue("a")
    bench.pump.turn()
    bench.hands.advance(2 * TTL_S)
    for suspect in bench.broker.suspects():
        bench.broker.reap(suspect.slot, [release(claim) for claim in suspect.claims])
    bench.places.end(Done())
    bench.pump.turn(may_claim=False)
    assert bench.told.count("job.fenced") == 1
    assert bench.told.count("job.completed") == 0
    assert bench.state("a") == "pending"


def test_a_job_that_was_lost_is_abandoned_and_its_slot_is_free(bench: Bench) -> None:
    bench.enqueue("a")
    bench.pump.turn()
    [key] = bench.places.running
    slot = key.slot
    bench.broker.store.processing[slot].clear()  # a failover rewound the claim
    bench.let_renewal_come()
    bench.pump.turn(may_claim=False)
    assert bench.places.abandoned == [key]
    assert bench.pump.slots.is_idle
    assert bench.told.count("job.fenced") == 1
    assert slot in bench.pump.slots.names


def test_a_job_that_a_slot_did_not_know_of_is_run(bench: Bench) -> None:
    bench.enqueue("a")
    bench.broker.loses_replies = 1
    with pytest.raises(BrokerUnavailable):
        bench.pump.turn()
    bench.let_renewal_come()
    bench.pump.turn(may_claim=False)
    assert bench.submitted() == ["a"]
    bench.places.end(Done())
    bench.pump.turn()
    assert bench.state("a") == "completed"


def test_a_stopping_worker_gives_back_a_job_that_it_did_not_know_of(bench: Bench) -> None:
    bench.enqueue("a")
    bench.broker.loses_replies = 1
    with pytest.raises(BrokerUnavailable):
        bench.pump.turn()
    bench.pump.is_quiet = True
    bench.let_renewal_come()
    bench.pump.turn()
    assert bench.submitted() == []
    bench.pump.finish()
    assert bench.state("a") == "pending"


def test_a_cancelled_job_is_asked_to_stop_once(bench: Bench) -> None:
    bench.enqueue("a")
    bench.pump.turn()
    [key] = bench.places.running
    bench.broker.cancel(["a"])
    for _ in range(3):
        bench.let_renewal_come()
        bench.pump.turn()
    assert bench.places.cancelled == [key]
    bench.places.end(Cancelled())
    bench.pump.turn()
    assert bench.state("a") == "cancelled"


# files that changed


def test_a_changed_file_whose_new_version_has_a_job_is_superseded(bench: Bench) -> None:
    bench.enqueue("a", signature="1-1")
    bench.pump.turn()
    job = file_job(b"/data/a", size=2, priority="low", now=NOW, signature="2-2", id="newer")
    bench.broker.enqueue([Entry(job, "low", version=Version(b"/data/a", "2-2"))])
    bench.places.end(Changed("2-2"))
    bench.pump.turn(may_claim=False)
    assert bench.state("a") == "completed"
    assert bench.broker.store.counters["superseded"] == 1
    assert len(bench.places.submitted) == 1


@pytest.mark.parametrize("signature", ["2-2", "1-1"])
def test_a_changed_file_that_no_other_job_is_for_is_run_as_it_is(bench: Bench, signature: str) -> None:
    """Nobody knows the version that is there; or it is, again, the one this job is for."""
    bench.enqueue("a", signature="1-1")
    bench.pump.turn()
    bench.places.end(Changed(signature))
    bench.pump.turn(may_claim=False)
    assert [task.runs_changed for task in bench.places.submitted] == [False, True]
    bench.places.end(Done())
    bench.pump.turn()
    assert bench.state("a") == "completed"
    assert bench.broker.store.counters["superseded"] == 0


def test_a_changed_file_is_not_begun_anew_after_quiet(bench: Bench) -> None:
    bench.enqueue("a", signature="1-1")
    bench.pump.turn()
    bench.places.end(Changed("2-2"))
    bench.pump.is_quiet = True
    while not bench.pump.is_idle:
        bench.pump.turn()
    assert len(bench.places.submitted) == 1
    assert bench.state("a") == "pending"


# what can't be run


def test_what_nobody_can_run_is_buried_without_being_run_and_is_no_sample() -> None:
    bench = Bench(count=2, min_samples=1)
    bench.broker.store.push_raw("low", b"no job", front=False)
    bench.broker.enqueue([Entry(typed_job("unheard-of", None, priority="low", now=NOW, id="typed"), "low")])
    bench.pump.turn()
    assert bench.pump.has_news, "it is told at once"
    bench.pump.turn()
    assert bench.submitted() == []
    assert bench.broker.peek("dead_letter", 9)[1] == b"no job"
    assert bench.state("typed") == "dead"
    assert bench.breaker.state == "closed"
    assert ["is_failure" in fields for event, fields in bench.told.events if event == "job.dead"] == [False, False]


def test_renewals_name_what_each_slot_believes_to_hold(bench: Bench) -> None:
    bench.enqueue("a")
    bench.pump.turn()
    held = {slot: raw for slot, raw in bench.pump.slots.believed() if raw}
    assert len(bench.pump.slots.believed()) == 2
    assert {renewal.status for renewal in bench.broker.renew(bench.pump.slots.believed())} == {
        LeaseStatus.HELD,
        LeaseStatus.IDLE,
    }
    assert len(held) == 1
