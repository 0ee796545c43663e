"""A key of the wrong type, a right that is missing: the call is refused, the error says what is in the way, and not a
byte has changed. Lua does not roll back, so this holds only if every script looks before it writes."""

from collections.abc import Iterator
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import an_entry, completed, enqueue, ids_in, places_of, register
from tests.support.redis_store import VERBS, Store, claimed, contents, dump, opened, spoil, whole_life

# All but the turn of several verbs: each of them is here by itself, and one's refusal does not undo another.
SINGLE = [verb for verb in VERBS if verb.name != "settle_and_claim"]
every_verb = pytest.mark.parametrize("verb", SINGLE, ids=[verb.name.replace(" ", "_") for verb in SINGLE])


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with opened(redis_server) as store:
        yield store


def prepared(store, verb):
    """The call, its scene set; and a copy of every key before it, to put it back."""
    store.empty()
    call = verb.prepare(store)
    copies = {key: (store.client.dump(key), store.client.pexpiretime(key)) for key in keys_in(store)}
    return call, copies


def keys_in(store):
    return sorted(store.client.scan_iter(count=1000))


def refusal_of(call, *args):
    """What it says if it refuses; that it should be away is an error here."""
    try:
        call(*args)
    except BrokerUnavailable:
        raise
    except BrokerError as error:
        return str(error)
    return None


def put_back(client, key, copy):
    client.delete(key)
    if copy is not None:
        payload, expires_at_ms = copy
        client.restore(key, max(0, expires_at_ms), payload, absttl=True)


def changed_by(store, verb):
    """Every key, and those that the call makes, changes or removes."""
    store.empty()
    call = verb.prepare(store)
    before = contents(store.client)
    call(store.broker)
    after = contents(store.client)
    keys = before.keys() | after.keys() | {name.encode() for name in store.broker.names.fixed}
    return sorted(keys), {key for key in keys if before.get(key) != after.get(key)}


@every_verb
def test_a_key_of_the_wrong_type_is_refused_and_nothing_changes(store, verb):
    keys, destinations = changed_by(store, verb)
    if verb.name == "claim":
        keys = [key for key in keys if not key.startswith(b"jobqueue:job:")]  # see below
    call, original = prepared(store, verb)
    for key in keys:
        spoil(store.client, key)
        before = dump(store.client)
        refusal = refusal_of(call, store.broker)
        if refusal is None:
            assert key not in destinations, f"{key} is spoilt, and nobody minded"
            assert dump(store.client)[key] == before[key]
            call, original = prepared(store, verb)
        else:
            assert key.decode() in refusal
            assert dump(store.client) == before, f"{key} is spoilt"
            put_back(store.client, key, original.get(key))
    call(store.broker)


def test_a_job_whose_record_is_of_the_wrong_type_is_not_claimed(store):
    enqueue(store, "a")
    register(store, "w1")
    spoil(store.client, b"jobqueue:job:a")
    before = dump(store.client)
    with pytest.raises(BrokerError, match="jobqueue:job:a is a stream"):
        store.broker.settle_and_claim([], ["w1"])
    assert dump(store.client) == before


def test_what_was_claimed_before_a_job_that_cannot_be_reaches_its_slots(store):
    """Or it would lie in their lists, unknown to them; the next call meets the other job first."""
    enqueue(store, "a", "b")
    register(store, "w1", "w2")
    spoil(store.client, b"jobqueue:job:b")
    assert [claim.id for claim in store.broker.settle_and_claim([], ["w1", "w2"]).claims] == ["a"]
    assert places_of(store, "b") == ["low"]
    with pytest.raises(BrokerError, match="jobqueue:job:b is a stream"):
        store.broker.settle_and_claim([], ["w2"])


def test_a_settlement_that_was_lost_is_not_counted_while_its_turn_is_refused(store):
    lost, held = claimed(store, "w1", "w2", ids=("a", "b"))
    store.client.delete("jobqueue:worker:w1:processing")
    spoil(store.client, b"jobqueue:processing:worker:w2")
    before = dump(store.client)
    for _ in range(3):
        with pytest.raises(BrokerError, match="jobqueue:processing:worker:w2 is a stream"):
            store.broker.settle_and_claim([complete(lost), complete(held)], [])
    assert dump(store.client) == before


def test_a_stranger_under_the_name_of_a_record_that_falls_off_is_left_alone(redis_server):
    """It shows when the list is trimmed, which is after the writing began."""
    with opened(redis_server, **{"worker.completed_max": 1}) as store:
        completed(store, "a")
        spoil(store.client, b"jobqueue:job:a")
        completed(store, "b")
        assert ids_in(store, "completed") == ["b"]
        assert store.client.type("jobqueue:job:a") == b"stream"
        assert store.broker.census().drift == 0


LOOKS = {
    "census": lambda broker: broker.census(),
    "suspects": lambda broker: broker.suspects(sweep=True),
    "workers": lambda broker: broker.workers(),
    "overview": lambda broker: broker.overview(1),
    "lost": lambda broker: broker.lost(["a"]),
    "records": lambda broker: broker.records(["a"]),
    "peek": lambda broker: [broker.peek(place, 3) for place in ("high", "low", "scheduled", "dead_letter")],
    "pages": lambda broker: [list(broker.pages(place)) for place in ("high", "completed", "cancelled", "scheduled")],
    "lookup": lambda broker: broker.lookup([b"/data/a"]),
    "ledger": lambda broker: list(broker.ledger(b"/data")),
    "hourly": lambda broker: broker.hourly(1),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_at_a_key_of_the_wrong_type_names_it(store, look):
    claimed(store, "w1")
    store.client.delete("jobqueue:processing:worker:w1")
    keys = {*keys_in(store), *(name.encode() for name in store.broker.names.fixed)}
    refused = []
    for key in sorted(keys):
        copy = store.client.dump(key)
        spoil(store.client, key)
        if (refusal := refusal_of(LOOKS[look], store.broker)) is not None:
            assert key.decode() in refusal
            refused.append(key)
        put_back(store.client, key, copy and (copy, 0))
    assert refused
    LOOKS[look](store.broker)


# rights

# What fileq needs of a server that is not its own, as the README tells it: these commands, on its own keys and channel.
COMMANDS = (
    *("evalsha", "script|load", "type", "time", "exists", "del", "scan", "pexpire", "persist", "pttl"),
    *("get", "mget", "set", "incrby", "sadd", "srem", "sismember", "smembers"),
    *("hget", "hset", "hdel", "hmget", "hgetall", "hkeys", "hscan", "hexists", "hincrby"),
    *("lpush", "rpush", "rpop", "rpoplpush", "blmove", "llen", "lindex", "lpos", "lrange", "lrem"),
    *("zadd", "zrem", "zscore", "zcard", "zrange", "zrangebyscore", "publish", "subscribe"),
)
RIGHTS = ("~jobqueue:*", "&jobqueue:*", "-@all", *(f"+{command}" for command in COMMANDS))
LOGIN = {"redis.username": "fileq", "redis.password": "pass"}
# Where a right is given by pattern: keys of which only the server knows the name come under one.
PATTERNS = ("jobqueue:job:*", "jobqueue:stats:*", "jobqueue:worker:*:processing", "jobqueue:processing:worker:*")


@pytest.fixture
def limited(store):
    """A broker with exactly the documented rights."""
    store.server.add_user("fileq", "pass", *RIGHTS)
    return store.another(**LOGIN)


def change_rights(store, *rules):
    store.client.execute_command("ACL", "SETUSER", "fileq", *rules)


def calls_of(client):
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}


def used_by(store, verb):
    """The commands that the call makes the server run."""
    store.empty()
    call = verb.prepare(store)
    before = calls_of(store.client)
    call(store.broker)
    return {name for name, n in calls_of(store.client).items() if n > before.get(name, 0)} - {"info"}


def assert_refused(store, call, broker, what):
    before = dump(store.client)
    refusal = refusal_of(call, broker)
    assert refusal is not None, f"nobody minded {what}"
    assert "forbids" in refusal
    assert dump(store.client) == before, what


def test_the_documented_rights_suffice_for_a_whole_life(redis_server):
    redis_server.add_user("fileq", "pass", *RIGHTS)
    with Store(redis_server, **LOGIN, **{"worker.completed_max": 1}) as store:
        whole_life(store.broker, store.client)


def test_none_of_the_documented_rights_is_idle(redis_server):
    redis_server.add_user("fileq", "pass", *RIGHTS)
    with Store(redis_server, **LOGIN) as store:
        for command in set(COMMANDS) - {"publish", "script|load", "blmove"}:  # these have tests of their own
            store.empty()
            change_rights(store, f"-{command}")
            refusal = refusal_of(whole_life, store.broker, store.client)
            assert command in (refusal or "nobody needs it").lower(), command
            change_rights(store, f"+{command}")
        change_rights(store, "-script|load")
        assert "script|load" in refusal_of(store.another)


@every_verb
def test_each_right_that_is_missing_is_noticed_before_anything_changes(store, limited, verb):
    commands = used_by(store, verb) & set(COMMANDS)
    assert len(commands) > (0 if verb.name in ("pause", "resume") else 3)
    call, _ = prepared(store, verb)
    for command in commands - {"publish", "time"}:
        change_rights(store, f"-{command}")
        assert_refused(store, call, limited, f"-{command}")
        change_rights(store, f"+{command}")
    call(limited)


@every_verb
def test_each_key_that_may_only_be_read_is_noticed_before_anything_changes(store, limited, verb):
    _, changed = changed_by(store, verb)
    call, _ = prepared(store, verb)
    for name in (*store.broker.names.fixed, *PATTERNS):
        if any(fnmatchcase(key.decode(), name) for key in changed):
            others = [f"~{other}" for other in (*store.broker.names.fixed, *PATTERNS) if other != name]
            change_rights(store, "resetkeys", *others, f"%R~{name}")
            assert_refused(store, call, limited, f"%R~{name}")
    change_rights(store, "~jobqueue:*")
    call(limited)


def test_a_missing_clock_is_refused(store):
    store.server.add_user("fileq", "pass", *RIGHTS, "-time")
    with Store(store.server, **LOGIN) as real:
        assert_refused(store, lambda broker: broker.enqueue([an_entry("a")]), real.broker, "-time")


def test_without_the_channel_everything_works_and_nobody_hears_of_it(redis_server):
    redis_server.add_user("fileq", "pass", *RIGHTS, "resetchannels")
    with Store(redis_server, **LOGIN) as store, redis_server.client().pubsub() as listener:
        listener.subscribe("jobqueue:events")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        whole_life(store.broker, store.client, is_heard=False)
        assert listener.get_message(timeout=0.1) is None
        with pytest.raises(BrokerError, match=r"forbids.*jobqueue:events"):
            store.broker.subscribe()


def test_a_waiter_without_the_right_to_wait_says_so(store, limited):
    change_rights(store, "-blmove")
    with closing(limited.waiter()) as waiter:
        waiter.arm()
        with pytest.raises(BrokerError, match=r"forbids BLMOVE jobqueue:high_priority"):
            waiter.wait(10)


def test_the_readme_lists_exactly_these_rights() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = readme.split("ACL SETUSER", 1)[1].split("```", 1)[0]
    assert {word.removeprefix("+") for word in block.split() if word.startswith("+")} == set(COMMANDS)
