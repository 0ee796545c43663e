"""Verbs that look for jobs in a list of many: exact, and without a script that compares the whole list."""

import random
from collections.abc import Callable, Iterator

import pytest

from fileq.actions.bulk import JobAction
from fileq.brokers.batches import NewBatch
from fileq.brokers.redis import list_search
from fileq.brokers.types import CancelResult, Entry, Record, Revival, Revived, UnrecordedJob
from fileq.client.broker_transport import BrokerTransport
from fileq.core.job import State, encode, raw_id
from fileq.core.settlement import complete
from fileq.queries.job_filter import JobFilter
from fileq.queries.job_ids import id_in
from fileq.testing.conformance.builders import a_job, an_entry, burial, enqueue, names, record_of, register
from fileq.testing.conformance.concurrency import run_concurrently
from tests.support.bulk_actions import act_on_all
from tests.support.redis_store import Store, opened, piped

LENGTH = 20_000  # much more than a script may read
READ = 3_000  # elements that one command may read or compare
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
    """Watches the commands of the scripts: none reads many elements, and a script removes all its jobs in one walk."""
    removals = 0
    with store.client.monitor() as monitor:
        call()
        store.client.echo("the end")
        for seen in monitor.listen():
            words = seen["command"].split(" ")
            if words[:2] == ["ECHO", "the"]:
                return
            removals = 0 if words[0] == "EVALSHA" else removals + (words[0] == "LREM")
            assert removals <= 1, seen
            if words[0] == "LPOS":
                assert "MAXLEN" in words, seen
                assert int(words[words.index("MAXLEN") + 1]) <= READ, seen
            if words[0] == "LRANGE":
                assert int(words[3]) - int(words[2]) < READ, seen


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
    assert answers == [Revived(True)] * 24
    assert in_list(store, store.keys.dead) == []
    assert in_list(store, store.keys.list_of("low")) == IDS
    assert store.broker.revive(revivals) == [Revived(False)] * 24


def test_jobs_in_the_middle_of_a_long_dead_letter_list_are_discarded(store):
    raws = dead(store)
    elements = list(zip(IDS, raws, strict=True))
    answers = []
    assert_no_long_search(store, lambda: answers.append(store.broker.discard(elements)))
    assert answers == [[True] * 24]
    assert in_list(store, store.keys.dead) == []
    assert store.broker.records(IDS) == [None] * 24
    assert store.broker.discard(elements) == [False] * len(elements)


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
    has_raced = []

    class RacedWalk(list_search.ListWalk):
        def read(self):
            page = super().read()
            if not page and not has_raced:
                has_raced.append(True)
                assert other.restore(IDS) == [True] * 24
                others = [b'{"id":"more-%d","filepath":""}' % i for i in range(1000)]
                piped(store.client, [("LPUSH", key, *others), ("RPUSH", key, *others)])
            return page

    monkeypatch.setattr(list_search, "ListWalk", RacedWalk)
    assert store.broker.restore(IDS) == [False] * 24
    assert has_raced
    assert in_list(store, key) == IDS


@pytest.mark.parametrize("command", ["LPUSH", "RPUSH"])
def test_a_proof_of_absence_is_void_when_another_program_has_just_pushed_the_job(store, monkeypatch, command):
    [raw, *others] = waiting(store)
    key = store.keys.list_of("low")
    fill(store, key, among=others)

    class RacedWalk(list_search.ListWalk):
        def read(self):
            page = super().read()
            if not page:
                store.client.execute_command(command, key, raw)
            return page

    monkeypatch.setattr(list_search, "ListWalk", RacedWalk)
    assert store.broker.restore(IDS[:1]) == [False]
    assert in_list(store, key) == IDS


def test_the_work_grows_with_the_number_of_jobs_not_with_its_square(store):
    """Counts the commands on lists, each of which reads a bounded part: twice the jobs, twice the commands."""
    small, large = (commands_of_a_retry(store, count) for count in (4_000, 8_000))
    assert large < 2.3 * small


def commands_of_a_retry(store, count):
    """Puts back every second one of so many dead jobs, which are spread over the whole list."""
    store.empty()
    raws = [encode(a_job(id).but(error="odd" if i % 2 else "even")) for i, id in enumerate(names(count))]
    for start in range(0, count, 1000):
        piped(store.client, [("LPUSH", store.keys.dead, *raws[start : start + 1000])])
    store.client.config_resetstat()
    assert act_on_all(store.broker, store.config, JobAction.RETRY, JobFilter(error="odd")).count == count / 2
    stats = store.client.info("commandstats")
    assert store.client.llen(store.keys.dead) == count / 2
    return sum(stats[f"cmdstat_{name}"]["calls"] for name in ("lrange", "lrem", "evalsha"))


def test_the_dead_members_of_a_batch_are_put_back_in_the_order_of_the_list(store):
    """Their pages are in no order: the search for each passed over the whole list, and 10,000 members took 15 s."""
    ordered, of_batch = (count_of(store, 8_000) for count_of in (commands_of_a_retry, commands_of_a_batch_retry))
    assert of_batch < 1.5 * ordered


def commands_of_a_batch_retry(store, count):
    """Puts back the dead members of a batch; between each two of them in the list is another dead job."""
    store.empty()
    store.broker.create_batch(NewBatch("b", allow_failures=True))
    slots = names(100, "slot")
    register(store, *slots)
    for start in range(0, count, 100):
        ids = names(count, "member")[start : start + 50]
        store.broker.enqueue([Entry(a_job(id, batch_id="b"), "low", joins=True) for id in ids])
        enqueue(store, *names(count, "other")[start : start + 50])
        claims = store.broker.settle_and_claim([], slots).claims
        store.broker.settle_and_claim([burial(claim) for claim in claims], [])
        store.advance(0.001)
    store.client.config_resetstat()
    assert BrokerTransport(store.broker, store.config).retry_batch("b").count == count / 2
    stats = store.client.info("commandstats")
    assert store.client.llen(store.keys.dead) == count / 2
    return sum(stats[f"cmdstat_{name}"]["calls"] for name in ("lrange", "lrem", "evalsha"))


def test_jobs_are_cancelled_while_workers_claim_and_producers_push(store):
    """Each job is claimed or cancelled, never both and never missed."""
    enqueue(store, *names(6_000))
    register(store, *names(50, "slot"))
    other = store.another()

    def move() -> list[str]:
        claimed = []
        for i in range(20):
            turn = other.settle_and_claim([], names(50, "slot"))
            claimed += [claim.id for claim in turn.claims]
            other.settle_and_claim([complete(claim) for claim in turn.claims], [])
            other.enqueue([an_entry(f"more-{i}-{n}") for n in range(100)])
        return claimed

    wanted = random.Random(2).sample(names(6_000), 3_000)
    claimed, answers = run_concurrently(move, lambda: store.broker.cancel(wanted))
    cancelled = {id for id, answer in zip(wanted, answers, strict=True) if answer is CancelResult.CANCELLED}
    assert set(wanted) - cancelled <= set(claimed)
    assert cancelled.isdisjoint(claimed)
    assert cancelled == {id_in(raw) for raw in store.client.lrange(store.keys.cancelled, 0, -1)}
    census = store.broker.census()
    assert (census.pending["low"], census.drift) == (8_000 - 1_000 - len(cancelled), 0)


def test_the_oldest_of_copies_far_apart_is_revived(store):
    same, rest = b"same", [b"other-%d" % i for i in range(6_000)]
    elements = [*rest[:2_000], same, *rest[2_000:4_000], same, *rest[4_000:]]
    piped(store.client, [("LPUSH", store.keys.dead, *elements)])
    assert store.broker.revive([Revival(same, raw_id(same), same, "low")] * 3) == [
        Revived(True),
        Revived(True),
        Revived(False),
    ]
    assert store.client.lrange(store.keys.dead, 0, -1) == rest[::-1]
    piped(store.client, [("LPUSH", store.keys.dead, same), ("RPUSH", store.keys.dead, same)])
    assert store.broker.discard([(raw_id(same), same)] * 2) == [True, True]
    assert store.client.lrange(store.keys.dead, 0, -1) == rest[::-1]
