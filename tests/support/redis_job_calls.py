"""The calls on Redis that make jobs without a producer, and those of the catalog, each with a scene for it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from fileq.brokers.schedules import Fire, FireResult, Overlap
from fileq.brokers.types import Entry, Revival, Revived
from fileq.core.job import Claim, Version, encode, rfc3339_ms
from fileq.core.outcome import FollowUp, Output
from fileq.core.settlement import Settlement, complete
from fileq.testing.conformance.builders import a_job, burial, claim_one, enqueue, failed, settle
from tests.support.broker_calls import BrokerCall, Invocation
from tests.support.redis_store import Store, claimed

KEY = "the one report"
DEADLINE = "2030-01-01T00:00:00Z"


def follow_ups(parent: str) -> tuple[FollowUp, ...]:
    """A plain one, a delayed one with a unique key, and one with a deadline about a version."""
    job = a_job(f"{parent}.0", parent_id=parent)
    return (
        FollowUp(job, "low"),
        FollowUp(job.but(id=f"{parent}.1", unique_key=f"of {parent}"), "high", delay_ms=60_000),
        FollowUp(job.but(id=f"{parent}.2", deadline=DEADLINE), "low", version=Version(b"/data/made", "s1")),
    )


def followed(make: Callable[[Claim], Settlement]) -> Callable[[Claim], Settlement]:
    def settlement(claim: Claim) -> Settlement:
        outputs = (Output(b"/out/a", 1, "s1"), Output(b"/out/b", 2, "s2")) if make is complete else ()
        return replace(make(claim), follow_ups=follow_ups(claim.id), outputs=outputs)

    return settlement


def _settling(make: Callable[[Claim], Settlement]) -> Callable[[Store], Invocation]:
    def prepare(store: Store) -> Invocation:
        settlements = [followed(make)(claim) for claim in claimed(store, "w1", "w2")]
        return lambda broker: list(broker.settle_and_claim(settlements, []).settled)

    return prepare


def _reaping(store: Store) -> Invocation:
    [claim] = claimed(store, "w1")
    store.client.delete("jobqueue:processing:worker:w1")
    settlement = followed(lambda c: burial(c, died=True))(claim)
    return lambda broker: broker.reap("w1", [settlement])


def keyed(id: str, key: str = KEY) -> Entry:
    return Entry(a_job(id, unique_key=key, deadline=DEADLINE), "low")


def _enqueue(store: Store) -> Invocation:
    store.broker.enqueue([keyed("holder")])

    def call(broker: Any) -> Any:
        reply = broker.enqueue([keyed("a"), keyed("b", "another key")])
        return list(reply.results), list(reply.existing)

    return call


def _sweep(store: Store) -> Invocation:
    store.broker.enqueue([keyed("a"), keyed("b", "another key")])
    settle(store, complete(claim_one(store)))
    return lambda broker: broker.sweep_unique()


def _cancel(store: Store) -> Invocation:
    enqueue(store, "waiting")
    enqueue(store, "later", delay_ms=60_000)
    wanted = {id: follow_ups(id) for id in ("waiting", "later")}
    return lambda broker: broker.cancel(list(wanted), wanted)


def _clear(store: Store) -> Invocation:
    enqueue(store, "a", "b", "c")
    raws = store.broker.peek("low", 2)
    return lambda broker: broker.clear("low", raws, {"a": follow_ups("a")})


def _revive(store: Store) -> Invocation:
    store.broker.enqueue([keyed("a")])
    settlement = burial(claim_one(store))
    settle(store, settlement)
    revivals = [Revival(settlement.next_raw, "a", encode(keyed("a").job), "low")]
    return lambda broker: broker.revive(revivals)


def late(store: Store) -> None:
    """Three jobs that wait past their deadline, the second of them scheduled."""
    jobs = [a_job(id, deadline=rfc3339_ms(store.clock.ms + 1000)) for id in ("a", "later", "last")]
    store.broker.enqueue([Entry(jobs[0], "low"), Entry(jobs[1], "high", delay_ms=60_000), Entry(jobs[2], "low")])
    store.advance(1)


def _overdue(store: Store) -> Invocation:
    late(store)
    store.broker.cancel(["last"])
    return lambda broker: [claim.id for claim in broker.overdue()]


def _bury_overdue(store: Store) -> Invocation:
    late(store)
    settlements = [followed(partial(burial, refused=True))(claim) for claim in store.broker.overdue()]
    return lambda broker: broker.bury_overdue([replace(s, order=b"bury \n/data/a") for s in settlements])


def _firing(overlap: Overlap, *, is_running: bool = False) -> Callable[[Store], Invocation]:
    def prepare(store: Store) -> Invocation:
        store.broker.define_schedule("nightly", "r1", 1000)
        entry = FollowUp(a_job("sched.1"), "low", is_own=True)
        assert store.broker.fire(Fire("nightly", "r1", 1000, 2000, entry)) is FireResult.FIRED
        if is_running:
            claim_one(store)
        job = a_job("sched.2", unique_key=KEY, deadline=DEADLINE)
        entry = FollowUp(job, "low", version=Version(b"/data/a", "s1"), is_own=True)
        cancelled = follow_ups("last")[:2]
        fire = Fire("nightly", "r1", 2000, 3000, entry, 1, overlap, cancelled)
        return lambda broker: broker.fire(fire)

    return prepare


def _define(store: Store) -> Invocation:
    store.broker.define_schedule("nightly", "r1", 1000)
    return lambda broker: broker.define_schedule("nightly", "r2", 2000)


def _paused(store: Store) -> Invocation:
    store.broker.define_schedule("nightly", "r1", 1000)
    return lambda broker: broker.pause_schedule("nightly")


def _resumed(store: Store) -> Invocation:
    _paused(store)(store.broker)
    return lambda broker: broker.resume_schedule("nightly", 2000)


def _removed(store: Store) -> Invocation:
    store.broker.define_schedule("nightly", "r1", 1000)
    return lambda broker: broker.remove_schedule("nightly")


def _put(store: Store) -> Invocation:
    store.broker.put_document("webhooks", "a", b"1")
    return lambda broker: broker.put_document("webhooks", "a", b"2", 1)


def _remove(store: Store) -> Invocation:
    store.broker.put_document("webhooks", "a", b"1")
    return lambda broker: broker.remove_document("webhooks", "a", 1)


def _done_already(answer: list[Any]) -> list[str]:
    return ["done already"] * len(answer)


def _fired_or_stale(answer: Any) -> Any:
    """The state of the schedule names the job that was enqueued; of a slot without one the reply is lost."""
    return answer if answer is FireResult.FIRED else FireResult.STALE


JOB_CALLS = (
    BrokerCall("enqueue with unique keys", _enqueue),
    BrokerCall("complete and follow", _settling(complete), _done_already),
    BrokerCall("retry and follow", _settling(failed), _done_already),
    BrokerCall("bury and follow", _settling(burial), _done_already),
    BrokerCall("reap and follow", _reaping, lambda answer: ("fenced",)),
    BrokerCall("cancel by id and follow", _cancel, lambda answer: ["ended", "ended"]),
    BrokerCall("clear", _clear, lambda answer: [False] * len(answer)),
    BrokerCall("revive with a unique key", _revive, lambda answer: [Revived(False)]),
    BrokerCall("sweep_unique", _sweep),
    BrokerCall("overdue", _overdue, lambda answer: []),
    BrokerCall("bury_overdue", _bury_overdue, lambda answer: ("fenced",) * len(answer)),
    BrokerCall("fire", _firing(Overlap.ALLOW), _fired_or_stale),
    BrokerCall("fire and skip", _firing(Overlap.SKIP), _fired_or_stale),
    BrokerCall("fire and queue", _firing(Overlap.QUEUE), _fired_or_stale),
    BrokerCall("fire and withdraw", _firing(Overlap.CANCEL), _fired_or_stale),
    BrokerCall("fire and ask to stop", _firing(Overlap.CANCEL, is_running=True), _fired_or_stale),
    BrokerCall("define_schedule", _define),
    BrokerCall("pause_schedule", _paused),
    BrokerCall("resume_schedule", _resumed),
    BrokerCall("remove_schedule", _removed),
    BrokerCall("put_document", _put),
    BrokerCall("remove_document", _remove, lambda answer: False),
)
