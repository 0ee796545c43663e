"""The rule of repetition of actions on many jobs (fileq/actions/bulk.py), over every broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from fileq.actions.bulk import BATCH, NAMED, PASSES_IN_VAIN, ActionReport, BulkActions, JobAction, JobChange
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import CLEAR_REACH, CancelResult, Revived
from fileq.core.batch import CallbackKind
from fileq.core.job import Claim, State, raw_id
from fileq.core.settlement import Settlement, complete
from fileq.queries.job_filter import JobFilter
from fileq.testing.conformance.batch_builders import add, batch_of, callback_jobs, create
from fileq.testing.conformance.builders import (
    burial,
    claim_one,
    claims_of,
    dead,
    drift,
    enqueue,
    foreign,
    ids_in,
    names,
    places_of,
    record_of,
    running,
    settle,
)
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness
from tests.support.bulk_actions import act_on_all

COUNT = 3 * BATCH + 50
SLOTS = names(COUNT, "slot")
ACTIONS = list(JobAction)
CHANGED = (True, Revived(True), CancelResult.CANCELLED, CancelResult.REQUESTED)  # answers of the broker


def bury_waiting(harness: Harness) -> list[str]:
    """Every job that waits dies."""
    claims = claims_of(harness, *SLOTS)
    harness.broker.settle_and_claim([burial(claim) for claim in claims], [])
    return [claim.id for claim in claims]


def prepare(harness: Harness, action: JobAction) -> list[str]:
    """Jobs that the action changes; of those to cancel some run, some wait for their time."""
    ids = names(COUNT)
    if action is JobAction.RUN:
        enqueue(harness, *ids, delay_ms=60_000)
    elif action is JobAction.CANCEL:
        enqueue(harness, *ids[:-20])
        claims_of(harness, *SLOTS[:100])
        enqueue(harness, *ids[-20:], delay_ms=60_000)
    else:
        enqueue(harness, *ids)
        bury_waiting(harness)
    harness.advance(1)
    return ids


def changed_by(changes: list[JobChange]) -> list[str]:
    return [change.id for change in changes if change.is_done]


def run_of(harness: Harness, action: JobAction, broker: FullBroker | None = None) -> Callable[[], list[str]]:
    """An action on all jobs, which returns the ids that it says it has changed."""
    actions = BulkActions(broker or harness.broker, harness.config)

    def run() -> list[str]:
        bulk = actions.begin(action, actions.matching(action, JobFilter()))
        changed = [id for batch in bulk.batches() for id in changed_by(bulk.change(batch))]
        assert (len(changed), bulk.refused) == (bulk.count, 0)
        return changed

    return run


class Watched:
    """A broker that calls `before` and `after` for each change of many jobs."""

    VERBS = ("revive", "discard", "clear", "cancel", "due_now")

    def __init__(
        self,
        broker: FullBroker,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._broker, self._before, self._after = broker, before, after
        self.calls = Counter[str]()
        self.changed = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._broker, name)
        if not callable(call):
            return call

        def counted(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            if name not in self.VERBS:
                return call(*args, **options)
            self._before()
            answer = call(*args, **options)
            self.changed += sum(one in CHANGED for one in answer)
            self._after()
            return answer

        return counted


def watched(harness: Harness, **hooks: Callable[[], None]) -> Any:
    return Watched(harness.broker, **hooks)


@pytest.mark.parametrize("action", ACTIONS)
def test_two_actions_at_the_same_time_count_each_job_once_in_total(harness: Harness, action: JobAction) -> None:
    ids = prepare(harness, action)
    first, second = run_concurrently(run_of(harness, action), run_of(harness, action, harness.another()))
    assert Counter([*first, *second]) == Counter(ids)
    assert run_of(harness, action)() == []
    assert drift(harness) == 0


@pytest.mark.parametrize("action", ACTIONS)
def test_a_job_that_another_action_takes_between_the_look_and_the_change_is_counted_there(
    harness: Harness, action: JobAction
) -> None:
    ids = prepare(harness, action)
    taken: list[str] = []

    def overtake() -> None:
        if not taken:
            taken.extend(run_of(harness, action)())

    assert run_of(harness, action, watched(harness, before=overtake))() == []
    assert Counter(taken) == Counter(ids)


class Killed(BaseException):
    """Ends an action as a kill -9 ends its process: nothing after it runs."""


@pytest.mark.parametrize("is_before", [True, False], ids=["before the change", "after the change"])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_that_is_killed_and_repeated_changes_each_job_once(
    harness: Harness, action: JobAction, is_before: bool
) -> None:
    ids = prepare(harness, action)
    calls = 0

    def kill() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Killed

    broker = watched(harness, **{"before" if is_before else "after": kill})
    with pytest.raises(Killed):
        run_of(harness, action, broker)()
    left = run_of(harness, action)()
    assert 0 < broker.changed < len(ids)
    assert len(left) == len({*left}) == len(ids) - broker.changed
    assert {*left} <= {*ids}
    assert drift(harness) == 0


def test_jobs_that_die_again_meanwhile_are_not_put_back_a_second_time(harness: Harness) -> None:
    ids = prepare(harness, JobAction.RETRY)

    def die_again() -> None:
        harness.advance(0.001)
        bury_waiting(harness)

    assert Counter(run_of(harness, JobAction.RETRY, watched(harness, after=die_again))()) == Counter(ids)
    assert {record_of(harness, id).attempt_count for id in ids} == {2}
    assert Counter(ids_in(harness, "dead_letter")) == Counter(ids)
    harness.advance(0.001)
    assert Counter(run_of(harness, JobAction.RETRY)()) == Counter(ids), "the next action takes them"


def test_an_action_that_goes_on_with_its_cutoff_leaves_what_died_since(harness: Harness) -> None:
    dead(harness, "before")
    cutoff_ms = BulkActions(harness.broker, harness.config).now_ms()
    harness.advance(0.001)
    dead(harness, "after")
    for action in (JobAction.RETRY, JobAction.DELETE):
        report = act_on_all(harness.broker, harness.config, action, cutoff_ms=cutoff_ms)
        assert [one.id for one in report.results] == ["before"][: report.count]
    assert ids_in(harness, "dead_letter") == ["after"]


def test_jobs_that_are_enqueued_meanwhile_are_not_cancelled(harness: Harness) -> None:
    ids = prepare(harness, JobAction.CANCEL)
    more = iter(names(50, "more"))
    broker = watched(harness, after=lambda: (harness.advance(0.001), enqueue(harness, next(more))))  # type: ignore[func-returns-value]
    assert Counter(run_of(harness, JobAction.CANCEL, broker)()) == Counter(ids)
    assert ids_in(harness, "low") == names(50, "more")[: 50 - len([*more])]


def test_an_action_ends_when_passes_find_jobs_that_can_not_be_changed(harness: Harness) -> None:
    prepare(harness, JobAction.RUN)

    class Stuck(Watched):
        def due_now(self, ids: list[str]) -> list[bool]:
            self.calls["due_now"] += 1
            return [False] * len(ids)

    broker = Stuck(harness.broker)
    assert run_of(harness, JobAction.RUN, cast(FullBroker, broker))() == []
    assert broker.calls["due_now"] == PASSES_IN_VAIN * -(-COUNT // BATCH)


@pytest.mark.parametrize(("action", "verb"), [(JobAction.RETRY, "revive"), (JobAction.DELETE, "discard")])
def test_a_page_costs_one_call_of_each_kind(harness: Harness, action: JobAction, verb: str) -> None:
    prepare(harness, action)
    broker = watched(harness)
    act_on_all(broker, harness.config, action)
    pages = broker.calls["outlines"]
    assert (broker.calls[verb], broker.calls["records"], broker.calls["pages"]) == (pages, 0, 2)
    assert -(-COUNT // BATCH) <= pages <= -(-COUNT // BATCH) + 2, "Redis begins with short pages"


def test_a_report_counts_all_jobs_and_names_the_first(harness: Harness) -> None:
    enqueue(harness, *names(NAMED + 10))
    report = act_on_all(harness.broker, harness.config, JobAction.CANCEL)
    assert (report.count, [one.id for one in report.results]) == (NAMED + 10, names(NAMED))


def test_a_refused_job_is_named_once_however_many_passes_there_are(harness: Harness) -> None:
    harness.push_raw("low", b"not a job")
    enqueue(harness, *names(5))
    bury_waiting(harness)
    harness.advance(1)
    report = act_on_all(harness.broker, harness.config, JobAction.RETRY)
    assert (report.count, Counter(one.result for one in report.results)) == (5, {"refused": 1, "retried": 5})
    assert ids_in(harness, "dead_letter") == [raw_id(b"not a job")]


def test_a_limit_bounds_what_is_changed_not_what_is_refused(harness: Harness) -> None:
    harness.push_raw("low", b"not a job")
    enqueue(harness, *names(5))
    bury_waiting(harness)
    harness.advance(1)
    actions = BulkActions(harness.broker, harness.config)
    selection = actions.matching(JobAction.RETRY, JobFilter())
    assert actions.begin(JobAction.RETRY, selection, limit=3).complete().count == 3
    assert ids_in(harness, "low") == names(3)


@pytest.mark.parametrize("is_by_id", [True, False])
def test_a_dead_job_is_discarded_when_a_copy_of_its_id_completed_later(harness: Harness, is_by_id: bool) -> None:
    dead(harness, "a")
    harness.push_raw("low", foreign("a"))
    settle(harness, complete(claim_one(harness)))
    harness.advance(1)
    actions = BulkActions(harness.broker, harness.config)

    def delete() -> ActionReport:
        if is_by_id:
            return actions.act_on(JobAction.DELETE, ["a"])
        return act_on_all(harness.broker, harness.config, JobAction.DELETE)

    report = delete()
    assert (report.count, [(one.id, one.result) for one in report.results]) == (1, [("a", "deleted")])
    assert (ids_in(harness, "dead_letter"), record_of(harness, "a").state) == ([], State.COMPLETED)
    assert drift(harness) == 0
    assert delete().count == 0


def test_a_copy_that_died_since_the_discard_began_is_left_to_the_next(harness: Harness) -> None:
    """Its own bytes say when it died: the record is about a copy that ran under its id later."""
    cutoff_ms = BulkActions(harness.broker, harness.config).now_ms()
    harness.push_raw("low", foreign("a"))
    settle(harness, burial(claim_one(harness), now_ms=cutoff_ms + 60_000))
    harness.push_raw("low", foreign("a"))
    settle(harness, complete(claim_one(harness)))
    assert act_on_all(harness.broker, harness.config, JobAction.DELETE, cutoff_ms=cutoff_ms).count == 0
    assert ids_in(harness, "dead_letter") == ["a"]


def test_jobs_that_another_program_pushed_are_cancelled_near_the_front_of_their_queue(harness: Harness) -> None:
    for id in ("front", "later"):
        harness.push_raw("low", foreign(id))
        enqueue(harness, *names(CLEAR_REACH, id))
    kept = JobFilter(match="front.pdf"), JobFilter(match="later.pdf")
    near, far = (act_on_all(harness.broker, harness.config, JobAction.CANCEL, wanted) for wanted in kept)
    assert [(one.id, one.result) for one in near.results] == [("front", "cancelled")]
    assert (far.count, [(one.id, one.result) for one in far.results]) == (0, [("later", "refused")])
    assert "near the front of its queue" in far.results[0].reason
    act_on_all(harness.broker, harness.config, JobAction.CANCEL)
    assert ids_in(harness, "low") == []


@pytest.mark.parametrize("end", [complete, burial])
def test_a_pending_copy_of_a_job_that_has_ended_is_refused_with_the_reason(
    harness: Harness, end: Callable[[Claim], Settlement]
) -> None:
    harness.push_raw("low", foreign("a"))
    settle(harness, end(claim_one(harness)))
    harness.push_raw("low", foreign("a"))
    enqueue(harness, "b")
    state = record_of(harness, "a").state
    report = act_on_all(harness.broker, harness.config, JobAction.CANCEL)
    assert [(one.id, one.result) for one in report.results] == [("a", "refused"), ("b", "cancelled")]
    assert report.results[0].reason.startswith(f"it is already {state.value}; another program pushed its id again")
    assert (ids_in(harness, "low"), record_of(harness, "a").state) == (["a"], state)


def test_of_two_copies_that_another_program_pushed_the_one_that_stays_is_named(harness: Harness) -> None:
    for _ in range(2):
        harness.push_raw("low", foreign("a"))
    report = act_on_all(harness.broker, harness.config, JobAction.CANCEL)
    assert [(one.id, one.result) for one in report.results] == [("a", "refused"), ("a", "cancelled")]
    assert ids_in(harness, "low") == ["a"]


def test_a_job_that_ends_while_it_is_listed_is_no_pending_copy(harness: Harness) -> None:
    harness.push_raw("low", foreign("a"))

    class Overtaken(Watched):
        def outlines(self, ids: list[str]) -> Any:
            harness.advance(1)
            settle(harness, complete(claim_one(harness)))
            return harness.broker.outlines(ids)

    broker = cast(FullBroker, Overtaken(harness.broker))
    assert act_on_all(broker, harness.config, JobAction.CANCEL).results == ()


def test_a_cancelled_running_job_is_counted_by_the_first_request(harness: Harness) -> None:
    running(harness, "a")
    actions = BulkActions(harness.broker, harness.config)
    first, second = (actions.act_on(JobAction.CANCEL, ["a"]) for _ in range(2))
    assert [(one.count, one.results[0].result, one.has_failed) for one in (first, second)] == [
        (1, "requested", False),
        (0, "requested_before", False),
    ]
    assert places_of(harness, "a") == ["processing:w1"]
    assert record_of(harness, "a").state is State.RUNNING


def test_dead_jobs_of_a_cancelled_batch_run_after_a_retry_as_its_dry_run_says(harness: Harness) -> None:
    create(harness, CallbackKind.THEN)
    add(harness, "a", "c")
    for claim in claims_of(harness, "w1", "w2"):
        settle(harness, burial(claim))
    harness.broker.seal_batch("b")
    assert batch_of(harness).is_cancelled
    actions = BulkActions(harness.broker, harness.config)
    would = actions.begin(JobAction.RETRY, actions.matching(JobAction.RETRY, JobFilter()), is_dry_run=True).complete()
    assert (would.count, batch_of(harness).is_cancelled) == (2, True)
    assert actions.begin(JobAction.RETRY, actions.matching(JobAction.RETRY, JobFilter())).complete().count == 2
    for claim in claims_of(harness, "w3", "w4"):
        assert not claim.is_cancelled
        settle(harness, complete(claim))
    assert callback_jobs(harness) == {"b.then"}
