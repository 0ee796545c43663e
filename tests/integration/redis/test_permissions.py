"""A key of the wrong type or a missing permission: the call is refused, the error names the cause, and not a byte has
changed. Lua does not roll back, so this holds only if every script checks before it writes."""

from collections.abc import Iterator
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import an_entry, completed, enqueue, failed, ids_in, places_of, register
from tests.support.redis_batch_calls import is_tolerated
from tests.support.redis_calls import CALLS
from tests.support.redis_scenario import use_every_method
from tests.support.redis_store import Store, claimed, contents, dump, opened, piped, spoil

# Without settle_and_claim of several verbs: each verb is here alone, and the refusal of one does not undo another.
SINGLE = [call for call in CALLS if call.name != "settle_and_claim"]
every_call = pytest.mark.parametrize("subject", SINGLE, ids=[call.name.replace(" ", "_") for call in SINGLE])


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with opened(redis_server) as store:
        yield store


def prepared(store, subject):
    """The call with its scene set, and a copy of every key to restore it."""
    store.empty()
    call = subject.prepare(store)
    keys = keys_in(store)
    answers = piped(store.client, [(command, key) for key in keys for command in ("DUMP", "PEXPIRETIME")])
    return call, dict(zip(keys, zip(answers[::2], answers[1::2], strict=True), strict=True))


def keys_in(store):
    return sorted(store.client.scan_iter(count=1000))


def refusal_of(call, *args):
    """The message of a refusal, or None; BrokerUnavailable is an error here."""
    try:
        call(*args)
    except BrokerUnavailable:
        raise
    except BrokerError as error:
        return str(error)
    return None


def restore_key(client, key, copy):
    client.delete(key)
    if copy is not None:
        payload, expires_at_ms = copy
        client.restore(key, max(0, expires_at_ms), payload, absttl=True)


def changed_by(store, subject):
    """All keys, and those that the call creates, changes or removes."""
    store.empty()
    call = subject.prepare(store)
    before = contents(store.client)
    call(store.broker)
    after = contents(store.client)
    keys = before.keys() | after.keys() | {name.encode() for name in store.keys.fixed}
    return sorted(keys), {key for key in keys if before.get(key) != after.get(key)}


@every_call
def test_a_key_of_the_wrong_type_is_refused_and_nothing_changes(store, subject):
    keys, destinations = changed_by(store, subject)
    if subject.name == "claim":
        keys = [key for key in keys if not key.startswith(b"jobqueue:job:")]  # see below
    call, original = prepared(store, subject)
    for key in keys:
        spoil(store.client, key)
        before = dump(store.client)
        refusal = refusal_of(call, store.broker)
        if refusal is None:
            is_left = key not in destinations or is_tolerated(subject, key)
            assert is_left, f"{key} has the wrong type, and the call was not refused"
            assert dump(store.client)[key] == before[key]
            call, original = prepared(store, subject)
        else:
            assert key.decode() in refusal
            assert dump(store.client) == before, f"{key} has the wrong type"
            restore_key(store.client, key, original.get(key))
    call(store.broker)


def test_a_job_whose_record_is_of_the_wrong_type_is_not_claimed(store):
    enqueue(store, "a")
    register(store, "w1")
    spoil(store.client, b"jobqueue:job:a")
    before = dump(store.client)
    with pytest.raises(BrokerError, match="jobqueue:job:a is a stream"):
        store.broker.settle_and_claim([], ["w1"])
    assert dump(store.client) == before


def test_jobs_claimed_before_one_that_cannot_be_claimed_reach_their_slots(store):
    """Otherwise their processing lists would hold jobs they do not know of. The next call meets the other job first."""
    enqueue(store, "a", "b")
    register(store, "w1", "w2")
    spoil(store.client, b"jobqueue:job:b")
    assert [claim.id for claim in store.broker.settle_and_claim([], ["w1", "w2"]).claims] == ["a"]
    assert places_of(store, "b") == ["low"]
    with pytest.raises(BrokerError, match="jobqueue:job:b is a stream"):
        store.broker.settle_and_claim([], ["w2"])


def test_a_settled_job_leaves_its_slot_although_the_claim_of_the_same_call_is_refused(store):
    [claim] = claimed(store, "w1", ids=("a",))
    spoil(store.client, b"jobqueue:low_priority")
    with pytest.raises(BrokerError, match="jobqueue:low_priority is a stream"):
        store.broker.settle_and_claim([complete(claim)], ["w1"])
    assert store.client.lrange("jobqueue:completed", 0, -1) == [claim.raw]
    assert store.client.exists(store.keys.processing("w1")) == 0


def test_a_slot_whose_list_has_another_job_gets_that_one_after_a_settlement(store):
    [claim] = claimed(store, "w1", ids=("a",))
    enqueue(store, "b", "c")
    store.client.lmove("jobqueue:low_priority", store.keys.processing("w1"), "RIGHT", "RIGHT")
    assert [claim.id for claim in store.broker.settle_and_claim([complete(claim)], ["w1"]).claims] == ["b"]
    assert [len(store.client.lrange(store.keys.processing("w1"), 0, -1)), places_of(store, "c")] == [1, ["low"]]


def test_settlements_of_one_job_by_two_verbs_in_one_call_take_effect_once(store):
    [first] = claimed(store, "w1", ids=("a",))
    [second] = store.broker.settle_and_claim([], ["w1"]).claims
    reply = store.broker.settle_and_claim([complete(first), failed(second)], ["w1"])
    assert reply.settled == (SettleResult.DONE, SettleResult.FENCED)
    assert places_of(store, "a") == ["completed"]
    assert store.broker.census().drift == 0


def test_a_fenced_settlement_is_not_counted_while_its_call_is_refused(store):
    lost, held = claimed(store, "w1", "w2", ids=("a", "b"))
    store.client.delete("jobqueue:worker:w1:processing")
    spoil(store.client, b"jobqueue:processing:worker:w2")
    before = dump(store.client)
    for _ in range(3):
        with pytest.raises(BrokerError, match="jobqueue:processing:worker:w2 is a stream"):
            store.broker.settle_and_claim([complete(lost), complete(held)], [])
    assert dump(store.client) == before


def test_another_type_under_the_key_of_a_trimmed_record_is_left_alone(redis_server):
    """The script finds it when it trims the list, after the first write."""
    with opened(redis_server, **{"worker.completed_max": 1}) as store:
        completed(store, "a")
        spoil(store.client, b"jobqueue:job:a")
        completed(store, "b")
        assert ids_in(store, "completed") == ["b"]
        assert store.client.type("jobqueue:job:a") == b"stream"
        assert store.broker.census().drift == 0


QUERIES = {
    "census": lambda broker: broker.census(),
    "suspects": lambda broker: broker.suspects(sweep=True),
    "workers": lambda broker: broker.workers(),
    "overview": lambda broker: broker.overview(1, jobs=3),
    "lost": lambda broker: broker.lost(["a"]),
    "records": lambda broker: broker.records(["a"]),
    "peek": lambda broker: [broker.peek(place, 3) for place in ("high", "low", "scheduled", "dead_letter")],
    "pages": lambda broker: [list(broker.pages(place)) for place in ("high", "completed", "cancelled", "scheduled")],
    "outlines": lambda broker: broker.outlines(["a"]),
    "fingerprints": lambda broker: broker.fingerprints(["a"]),
    "standings": lambda broker: broker.standings(["a"]),
    "page": lambda broker: [broker.page(place) for place in ("high", "completed", "scheduled", "processing")],
    "lookup": lambda broker: broker.lookup([b"/data/a"]),
    "known_files": lambda broker: broker.known_files([b"/data/a"]),
    "knows": lambda broker: broker.knows([(b"/data/a", "1-1-i1")]),
    "ledger": lambda broker: list(broker.ledger(b"/data")),
    "hourly": lambda broker: broker.hourly(1),
    "documents": lambda broker: (broker.documents("webhooks"), broker.documents_of(["webhooks"])),
    "schedules": lambda broker: broker.schedules(),
    "batches": lambda broker: broker.batches_by_id(["b"]),
    "batch_page": lambda broker: (broker.batch_page(), broker.batch_page(unfinished=True)),
    "members": lambda broker: (broker.unfinished_members("b"), broker.dead_members("b")),
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_a_key_of_the_wrong_type_names_it(store, query):
    claimed(store, "w1")
    store.client.delete("jobqueue:processing:worker:w1")
    names = (*store.keys.fixed, *store.keys.single, store.keys.documents("webhooks"), *store.keys.of_batch("b"))
    keys = {*keys_in(store), *(name.encode() for name in names)}
    refused = []
    for key in sorted(keys):
        copy = store.client.dump(key)
        spoil(store.client, key)
        if (refusal := refusal_of(QUERIES[query], store.broker)) is not None:
            assert key.decode() in refusal
            refused.append(key)
        restore_key(store.client, key, copy and (copy, 0))
    assert refused
    QUERIES[query](store.broker)


# permissions

# The permissions in docs/redis.md for a server that fileq shares: these commands, on its own keys and channel.
COMMANDS = (
    *("evalsha", "script|load", "type", "time", "exists", "del", "scan", "pexpire", "persist", "pttl"),
    *("get", "mget", "set", "incrby", "sadd", "srem", "sismember", "smembers"),
    *("scard", "sscan", "srandmember"),
    *("hget", "hset", "hdel", "hmget", "hgetall", "hkeys", "hscan", "hlen", "hincrby"),
    *("lpush", "rpush", "rpop", "ltrim", "blpop", "llen", "lindex", "lpos", "lrange", "lrem", "lset"),
    *("zadd", "zrem", "zscore", "zcard", "zrange", "zrangebyscore", "publish", "subscribe"),
)
PERMISSIONS = ("~jobqueue:*", "&jobqueue:*", "-@all", *(f"+{command}" for command in COMMANDS))
LOGIN = {"redis.username": "fileq", "redis.password": "pass"}
# Permissions by pattern, for keys whose names depend on ids and hours.
PATTERNS = (
    *("jobqueue:job:*", "jobqueue:stats:*", "jobqueue:worker:*:processing", "jobqueue:processing:worker:*"),
    *("jobqueue:holders:*", "jobqueue:route_rate:*", "jobqueue:made:*", "jobqueue:catalog:*"),
    "jobqueue:batch:*",
)


@pytest.fixture
def limited(store):
    """A broker with exactly the documented permissions."""
    store.server.add_user("fileq", "pass", *PERMISSIONS)
    return store.another(**LOGIN)


def change_permissions(store, *rules):
    store.client.execute_command("ACL", "SETUSER", "fileq", *rules)


def calls_of(client):
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}


def used_by(store, subject):
    """The commands that the call makes the server run."""
    store.empty()
    call = subject.prepare(store)
    before = calls_of(store.client)
    call(store.broker)
    return {name for name, n in calls_of(store.client).items() if n > before.get(name, 0)} - {"info"}


def assert_refused(store, call, broker, what):
    before = dump(store.client)
    refusal = refusal_of(call, broker)
    assert refusal is not None, f"the call was not refused with {what}"
    assert "forbids" in refusal
    assert dump(store.client) == before, what


def test_the_documented_permissions_suffice_for_every_method(redis_server):
    redis_server.add_user("fileq", "pass", *PERMISSIONS)
    with Store(redis_server, **LOGIN, **{"worker.completed_max": 1}) as store:
        use_every_method(store.broker, store.client)


def test_each_documented_permission_is_needed(redis_server):
    redis_server.add_user("fileq", "pass", *PERMISSIONS)
    with Store(redis_server, **LOGIN, **{"worker.starvation_share": 0}) as store:  # the scenario expects an order
        for command in set(COMMANDS) - {"publish", "script|load", "blpop"}:  # these have tests of their own
            store.empty()
            change_permissions(store, f"-{command}")
            refusal = refusal_of(use_every_method, store.broker, store.client)
            assert command in (refusal or "not needed").lower(), command
            change_permissions(store, f"+{command}")
        change_permissions(store, "-script|load")
        store.client.script_flush()
        assert "script|load" in refusal_of(store.broker.census)


@every_call
def test_each_missing_permission_is_found_before_anything_changes(store, limited, subject):
    commands = used_by(store, subject) & set(COMMANDS)
    assert len(commands) > (0 if subject.name in ("pause",) else 3)
    call, _ = prepared(store, subject)
    for command in commands - {"publish", "time"}:
        change_permissions(store, f"-{command}")
        assert_refused(store, call, limited, f"-{command}")
        change_permissions(store, f"+{command}")
    call(limited)


@every_call
def test_each_key_that_may_only_be_read_is_found_before_anything_changes(store, limited, subject):
    _, changed = changed_by(store, subject)
    call, _ = prepared(store, subject)
    names = (*store.keys.fixed, *store.keys.single, *PATTERNS)
    for name in names:
        if any(fnmatchcase(key.decode(), name) for key in changed):
            others = [f"~{other}" for other in names if other != name]
            change_permissions(store, "resetkeys", *others, f"%R~{name}")
            assert_refused(store, call, limited, f"%R~{name}")
    change_permissions(store, "~jobqueue:*")
    call(limited)


def test_a_missing_permission_for_the_time_is_refused(store):
    store.server.add_user("fileq", "pass", *PERMISSIONS, "-time")
    with Store(store.server, **LOGIN) as real:
        assert_refused(store, lambda broker: broker.enqueue([an_entry("a")]), real.broker, "-time")


def test_without_the_channel_every_method_works_and_no_event_is_published(redis_server):
    redis_server.add_user("fileq", "pass", *PERMISSIONS, "resetchannels")
    with Store(redis_server, **LOGIN) as store, redis_server.client().pubsub() as listener:
        listener.subscribe("jobqueue:events")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        use_every_method(store.broker, store.client, has_events=False)
        assert listener.get_message(timeout=0.1) is None
        with pytest.raises(BrokerError, match=r"forbids.*jobqueue:events"):
            store.broker.subscribe()


def test_a_waiter_without_permission_to_wait_names_it(store, limited):
    change_permissions(store, "-blpop")
    with closing(store.broker.waiter()) as watching, closing(limited.waiter()) as waiter:
        watching.arm()
        with pytest.raises(BrokerError, match=r"forbids BLPOP"):
            waiter.wait(10)


def test_the_documentation_lists_exactly_these_permissions() -> None:
    page = (Path(__file__).parents[3] / "docs" / "redis.md").read_text()
    block = page.split("ACL SETUSER", 1)[1].split("```", 1)[0]
    assert {word.removeprefix("+") for word in block.split() if word.startswith("+")} == set(COMMANDS)
