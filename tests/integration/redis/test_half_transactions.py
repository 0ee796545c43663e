"""Half of a transaction, as a torn append-only file leaves it after a second restart: fsck finds it and repairs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from fileq.brokers.redis.layout import Keys
from fileq.brokers.schedules import Fire, Overlap
from fileq.brokers.types import Revival
from fileq.core.job import Claim, State, encode
from fileq.core.outcome import FollowUp, Output
from fileq.core.settlement import Settlement, Verb, bury, complete
from fileq.testing.conformance.builders import (
    EVERY_SETTLEMENT,
    a_job,
    a_version,
    an_entry,
    claim_one,
    claims_of,
    dead,
    drift,
    enqueue,
    places_of,
    reap_all,
    recovered,
    register,
    running,
    settle,
)
from fileq.testing.conformance.harness import FakeClock
from tests.conformance.fsck_checks import check
from tests.support.redis_store import Store
from tests.support.servers import Server, available_servers

ENDED = ("completed", "cancelled", "dead_letter")
Act = Callable[[], object]
Prepare = Callable[[Store], Act]


@pytest.fixture(scope="module")
def durable() -> Iterator[Server]:
    binary = available_servers()["valkey"]
    assert binary is not None
    with Server(binary, aof=True) as server:
        yield server


def of_settlement(verb: Verb) -> Prepare:
    def prepare(store: Store) -> Act:
        claim = running(store, "a")
        return lambda: settle(store, EVERY_SETTLEMENT[verb](claim))

    return prepare


def of_enqueue(store: Store) -> Act:
    entry = an_entry("a", version=a_version("4-17"))
    return lambda: store.broker.enqueue([entry])


def of_delayed_enqueue(store: Store) -> Act:
    return lambda: enqueue(store, "a", delay_ms=60_000)


def of_claim(store: Store) -> Act:
    enqueue(store, "a")
    register(store, "w1")
    return lambda: claim_one(store)


def of_promote(store: Store) -> Act:
    enqueue(store, "a", delay_ms=1000)
    store.advance(2)
    return store.broker.promote


def of_due_now(store: Store) -> Act:
    enqueue(store, "a", delay_ms=60_000)
    return lambda: store.broker.due_now(["a"])


def of_cancel(store: Store) -> Act:
    enqueue(store, "a")
    return lambda: store.broker.cancel(["a"])


def of_reap(store: Store) -> Act:
    claim = running(store, "a")
    store.client.delete(Keys(store.config).heartbeat("w1"))
    return lambda: store.broker.reap("w1", [recovered(claim)])


def of_revive(store: Store) -> Act:
    raw = dead(store, "a")
    return lambda: store.broker.revive([Revival(raw, "a", encode(a_job("a")), "low")])


def of_discard(store: Store) -> Act:
    raw = dead(store, "a")
    return lambda: store.broker.discard([("a", raw)])


def of_follow_up(store: Store) -> Act:
    """The job whose halves are looked at is the follow-up."""
    claim = running(store, "parent")
    follow_up = FollowUp(a_job("a", parent_id="parent", unique_key="k"), "low", version=a_version("4-17"))
    settlement = replace(complete(claim), follow_ups=(follow_up,), outputs=(Output(b"/out", 1, "s1"),))
    return lambda: settle(store, settlement)


def of_clear(store: Store) -> Act:
    enqueue(store, "a")
    return lambda: store.broker.clear("low", store.broker.peek("low", 1))


def of_fire(store: Store) -> Act:
    store.broker.define_schedule("nightly", "r1", 1000)
    fire = Fire("nightly", "r1", 1000, 2000, FollowUp(a_job("a"), "low"))
    return lambda: store.broker.fire(fire)


def of_fire_that_cancels(store: Store) -> Act:
    of_fire(store)()
    fire = Fire("nightly", "r1", 2000, 3000, FollowUp(a_job("b"), "low"), overlap=Overlap.CANCEL)
    return lambda: store.broker.fire(fire)


VERBS: dict[str, Prepare] = {
    **{verb.value: of_settlement(verb) for verb in Verb},
    "enqueue": of_enqueue,
    "delayed enqueue": of_delayed_enqueue,
    "claim": of_claim,
    "promote": of_promote,
    "due_now": of_due_now,
    "cancel by id": of_cancel,
    "reap": of_reap,
    "revive": of_revive,
    "discard": of_discard,
    "complete with a follow-up": of_follow_up,
    "clear": of_clear,
    "fire": of_fire,
    "fire and cancel": of_fire_that_cancels,
}


def logged_commands(server: Server) -> list[list[bytes]]:
    """Every command in the append-only file."""
    [file] = (server.directory / "appendonlydir").glob("*.incr.aof")
    data, at, commands = file.read_bytes(), 0, []

    def number() -> int:
        nonlocal at
        end = data.index(b"\r\n", at)
        value, at = int(data[at + 1 : end]), end + 2
        return value

    while at < len(data):
        words = []
        for _ in range(number()):
            length = number()
            words.append(data[at : at + length])
            at += length + 2
        commands.append(words)
    return commands


def writes_of(server: Server, act: Act) -> list[list[bytes]]:
    before = len(logged_commands(server))
    act()
    commands = [words for words in logged_commands(server)[before:] if words[0].upper() != b"SELECT"]
    first = next(number for number, words in enumerate(commands) if words[0].upper() == b"MULTI")
    assert commands[-1][0].upper() == b"EXEC"
    return commands[first + 1 : -1]


def saved(store: Store) -> dict[bytes, tuple[int, Any]]:
    return {key: (max(store.client.pttl(key), 0), store.client.dump(key)) for key in store.client.scan_iter(b"*")}


def put_back(store: Store, state: dict[bytes, tuple[int, Any]]) -> None:
    store.client.flushall()
    for key, (ttl_ms, value) in state.items():
        store.client.restore(key, ttl_ms, value)


def drained(store: Store) -> None:
    """Lets workers do everything that is left: the slots from before the crash are dead, a new one runs all jobs."""
    store.client.delete(Keys(store.config).heartbeat("w1"))
    reap_all(store)
    store.advance(120)
    register(store, "w2")
    for _ in range(4):
        store.broker.promote()
        for claim in claims_of(store, "w2"):
            settle(store, complete(claim) if claim.job is not None else buried(claim))


def buried(claim: Claim) -> Settlement:
    """What a worker does with bytes that are not a job, such as the mark of an element that was about to be removed."""
    return bury(claim, claim.raw, error=claim.defect, kind="Undecodable", refused=True)


def assert_nothing_is_lost(store: Store, shown: object) -> None:
    """The job has ended, or was never there; no copy of it waits to run, and all jobs are accounted for.

    A copy may stay in the dead-letter queue beside the job that ran."""
    found = (shown, places_of(store, "a"), store.broker.records(["a"]), dict(store.broker.census().counters))
    [record] = store.broker.records(["a"])
    alive = [place for place in places_of(store, "a") if place not in ENDED]
    assert not alive, found
    assert drift(store) == 0, found
    assert record is None or record.state in (State.COMPLETED, State.CANCELLED, State.DEAD), found
    assert record is None or record.state is not State.DEAD or "dead_letter" in places_of(store, "a"), found


@pytest.mark.parametrize("verb", VERBS)
def test_every_half_of_a_transaction_is_harmless_or_found_and_repaired(durable: Server, verb: str) -> None:
    """What fsck calls clean ends well without it, and what it repairs ends well too."""
    with Store(durable, clock=FakeClock()) as store:
        store.empty()
        act = VERBS[verb](store)
        before, started_ms = saved(store), store.clock.ms if store.clock else 0
        writes = writes_of(durable, act)
        for count in range(1, len(writes)):
            put_back(store, before)
            assert store.clock is not None
            store.clock.ms = started_ms
            for words in writes[:count]:
                store.client.execute_command(*words)
            shown = f"{verb}: {count} of {len(writes)} writes, the last one {writes[count - 1]}"
            report = check(store)
            if not report.is_clean:
                report = check(store, repair=True)
                assert report.is_clean, (shown, report)
            drained(store)
            assert_nothing_is_lost(store, (shown, report.repairs))
