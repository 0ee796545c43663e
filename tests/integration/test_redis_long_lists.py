"""Verbs that look for jobs in a list of many: exact, and without a script that compares the whole list."""

import random
from collections.abc import Callable, Iterator

import pytest

from fileq.brokers.redis import repairer
from fileq.brokers.redis.encoding import id_in
from fileq.brokers.types import CancelResult, Record, Revival, UnrecordedJob
from fileq.core.job import State, encode
from fileq.testing.conformance.builders import a_job, enqueue, names, record_of
from fileq.testing.conformance.concurrency import run_concurrently
from tests.support.redis_store import Store, opened, piped

LENGTH = 60_000  # more than a script may search at once
COMPARED = 40_000  # elements that one command in a script may compare
IDS = names(24)


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with opened(redis_server) as store:
        yield store


def fill(store: Store, key: str, *, among: list[bytes]) -> None:
    """Makes a list of LENGTH elements, these in the middle of it."""
    others = [b'{"id":"other-%d","filepath":""}' % i for i in range(LENGTH - len(among))]
    half = len(others) // 2
    elements = [*others[:half], *among, *others[half:]]
    store.client.delete(key)
    piped(store.client, [("LPUSH", key, *elements[i : i + 1000]) for i in range(0, LENGTH, 1000)])


def waiting(store: Store) -> list[bytes]:
    """Enqueues jobs in the middle of a long queue."""
    enqueue(store, *IDS)
    raws = [record_of(store, id).raw for id in IDS]
    fill(store, store.keys.list_of("low"), among=raws)
    return raws


def dead(store: Store) -> list[bytes]:
    """Makes jobs dead in the middle of a long dead-letter list."""
    raws = waiting(store)
    store.client.delete(store.keys.list_of("low"))
    piped(store.client, [("HSET", store.keys.record(id), "state", "dead", "queued", 0) for id in IDS])
    fill(store, store.keys.dead, among=raws)
    return raws


def assert_no_long_search(store: Store, call: Callable[[], object]) -> None:
    """Watches the commands of the scripts: no search may compare more elements than COMPARED, and one script may remove
    only a few jobs from the middle of a list."""
    removals = 0
    with store.client.monitor() as monitor:
        call()
        store.client.echo("the end")
        for seen in monitor.listen():
            words = seen["command"].split(" ")
            if words[:2] == ["ECHO", "the"]:
                return
            removals = 0 if words[0] == "EVALSHA" else removals + (words[0] == "LREM")
            assert removals <= 3, seen
            if words[0] == "LPOS":
                assert "MAXLEN" in words, seen
                assert int(words[words.index("MAXLEN") + 1]) <= COMPARED, seen


def in_list(store: Store, key: str) -> list[str | None]:
    found = [id_in(raw) for raw in store.client.lrange(key, 0, -1)]
    return sorted(id for id in found if id in IDS)


def test_jobs_in_the_middle_of_a_long_queue_are_cancelled(store):
    waiting(store)
    answers = []
    assert_no_long_search(store, lambda: answers.extend(store.broker.cancel([*IDS, IDS[0], "unknown"])))
    assert answers == [CancelResult.CANCELLED] * 24 + [CancelResult.ENDED, CancelResult.UNKNOWN]
    assert in_list(store, store.keys.list_of("low")) == []
    assert in_list(store, store.keys.cancelled) == IDS
    assert store.client.llen(store.keys.list_of("low")) == LENGTH - 24


def test_jobs_in_the_middle_of_a_long_dead_letter_list_are_revived(store):
    raws = dead(store)
    revivals = [Revival(raw, id, raw, "low") for raw, id in zip(raws, IDS, strict=True)]
    answers = []
    assert_no_long_search(store, lambda: answers.extend(store.broker.revive(revivals)))
    assert answers == [True] * 24
    assert in_list(store, store.keys.dead) == []
    assert in_list(store, store.keys.list_of("low")) == IDS
    assert store.broker.revive(revivals) == [False] * 24


def test_jobs_in_the_middle_of_a_long_dead_letter_list_are_discarded(store):
    raws = dead(store)
    elements = list(zip(IDS, raws, strict=True))
    answers = []
    assert_no_long_search(store, lambda: answers.append(store.broker.discard(elements)))
    assert answers == [24]
    assert in_list(store, store.keys.dead) == []
    assert store.broker.records(IDS) == [None] * 24
    assert store.broker.discard(elements) == 0


@pytest.mark.parametrize("count", [1, 24], ids=["one job", "many"])
def test_jobs_lost_from_a_long_queue_are_restored(store, count):
    raws = waiting(store)
    lost = random.Random(1).sample(IDS, count)
    key = store.keys.list_of("low")
    fill(store, key, among=[raw for raw, id in zip(raws, IDS, strict=True) if id not in lost])
    answers = []
    assert_no_long_search(store, lambda: answers.append(store.broker.lost(IDS)))
    assert answers == [[id in lost for id in IDS]]
    assert_no_long_search(store, lambda: answers.append(store.broker.restore(IDS)))
    assert answers[1] == answers[0]
    assert in_list(store, key) == IDS
    assert store.broker.restore(IDS) == [False] * 24


def test_jobs_lost_from_a_long_dead_letter_list_are_restored(store):
    dead(store)
    fill(store, store.keys.dead, among=[])
    answers = []
    assert_no_long_search(store, lambda: answers.append(store.broker.restore(IDS)))
    assert answers == [[True] * 24]
    assert in_list(store, store.keys.dead) == IDS


def test_two_repairs_of_a_long_queue_restore_a_job_once(store):
    waiting(store)
    fill(store, store.keys.list_of("low"), among=[])
    other = store.another()
    answers = run_concurrently(lambda: store.broker.restore(IDS), lambda: other.restore(IDS))
    assert sum(map(sum, answers)) == 24
    assert in_list(store, store.keys.list_of("low")) == IDS


def test_a_job_in_a_long_queue_gets_its_record(store):
    raws = waiting(store)
    store.client.delete(*map(store.keys.record, IDS))
    jobs = [
        UnrecordedJob("low", Record(id, State.PENDING, raw, "low", created_ms=17))
        for id, raw in zip(IDS, raws, strict=True)
    ]
    gone = UnrecordedJob("low", Record("gone", State.PENDING, encode(a_job("gone")), "low"))
    assert_no_long_search(store, lambda: store.broker.unrecorded(jobs))
    assert store.broker.create_record([*jobs, gone]) == [True] * 24 + [False]
    assert [record.created_ms for record in store.broker.records(IDS)] == [17] * 24
    assert store.broker.lost(IDS) == [False] * 24


def test_a_proof_of_absence_is_void_when_another_repair_was_faster(store, monkeypatch):
    """The other one restores the jobs after this one has read the list, and other jobs hide them from its ends."""
    waiting(store)
    key = store.keys.list_of("low")
    fill(store, key, among=[])
    other = store.another()
    real = repairer.look_for_all
    is_first = [True]

    def look_then_lose_the_race(*args):
        found = real(*args)
        if is_first.pop() if is_first else False:
            assert other.restore(IDS) == [True] * 24
            others = [b'{"id":"more-%d","filepath":""}' % i for i in range(1000)]
            piped(store.client, [("LPUSH", key, *others), ("RPUSH", key, *others)])
        return found

    monkeypatch.setattr(repairer, "look_for_all", look_then_lose_the_race)
    assert store.broker.restore(IDS) == [False] * 24
    assert in_list(store, key) == IDS
