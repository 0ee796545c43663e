"""One Redis broker on a real server, seen from both sides: as fileq has it, and as any other client has it.

Builders of the conformance suite take a Store for their harness. Time stands still, so that two runs of the same calls
leave the same bytes; only the expiries of keys are the server's.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import redis

from fileq.brokers.redis import RedisBroker, open_redis
from fileq.brokers.types import LedgerEntry, Record, Revival, TurnReply, UnrecordedJob
from fileq.config import Config, config_from
from fileq.core.claim import Claim
from fileq.core.job import State, Version, decode, encode, raw_id
from fileq.core.settlement import cancel, complete, release, retry
from fileq.testing.conformance.builders import (
    an_entry,
    burial,
    enqueue,
    failed,
    foreign,
    recovered,
    register,
    worker_info,
)
from fileq.testing.conformance.harness import START_MS, FakeClock, nested
from tests.support.servers import Server
from tests.support.waiting import wait_until

QUICK = {"redis.read_timeout": "150ms", "redis.write_timeout": "150ms"}
NO_RETRIES = {"redis.max_retries": 0}
GARBAGE = b"\x00not a job\xff"


class Store:
    """`broker` is fileq's client; `client` is a plain one that goes straight to the server."""

    def __init__(self, server: Server, *, clock: FakeClock | None = None, **settings: Any) -> None:
        self.server = server
        self.clock = clock
        self.settings = {"redis.addr": server.address, "redis.min_idle_conns": 0, **settings}
        self.config = config_on(**self.settings)
        self.client = server.client()
        self._opened: list[RedisBroker] = []
        self.broker = self.another()

    def another(self, **settings: Any) -> RedisBroker:
        """A further broker of the same store, with these settings changed."""
        broker = open_redis(config_on(**{**self.settings, **settings}), clock=self.clock)
        self._opened.append(broker)
        return broker

    def through(self, port: int, **settings: Any) -> RedisBroker:
        """A further broker that connects to this port."""
        return self.another(**{"redis.addr": f"127.0.0.1:{port}", **settings})

    def close(self) -> None:
        for broker in self._opened:
            broker.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def advance(self, seconds: float) -> None:
        assert self.clock is not None
        self.clock.ms += round(seconds * 1000)

    def empty(self) -> None:
        """As new; the scripts stay."""
        self.client.flushall()
        if self.clock is not None:
            self.clock.ms = START_MS


def config_on(**settings: Any) -> Config:
    return config_from(nested({"broker": "redis", **settings}))


# the server's side


def dump(client: redis.Redis) -> dict[bytes, tuple[bytes, Any, int]]:
    """All keys: type, what they hold to the byte, when they expire. Equal means that nothing was written."""
    keys = sorted(client.keys())
    kinds = piped(client, [("TYPE", key) for key in keys])
    held = piped(client, [_READ[kind](key) for kind, key in zip(kinds, keys, strict=True)])
    ends = piped(client, [("PEXPIRETIME", key) for key in keys])
    return dict(zip(keys, zip(kinds, map(_in_order, kinds, held), ends, strict=True), strict=True))


def contents(client: redis.Redis) -> dict[bytes, tuple[bytes, Any, bool]]:
    """The same, but of an expiry only that there is one: equal after equal calls."""
    return {key: (kind, value, at_ms > 0) for key, (kind, value, at_ms) in dump(client).items()}


_READ: dict[bytes, Callable[[bytes], tuple[Any, ...]]] = {
    b"string": lambda key: ("GET", key),
    b"list": lambda key: ("LRANGE", key, 0, -1),
    b"hash": lambda key: ("HGETALL", key),
    b"zset": lambda key: ("ZRANGE", key, 0, -1, "WITHSCORES"),
    b"set": lambda key: ("SMEMBERS", key),
    b"stream": lambda key: ("XRANGE", key, "-", "+"),
}


def _in_order(kind: bytes, value: Any) -> Any:
    return sorted(value) if kind == b"set" else value


def piped(client: redis.Redis, commands: list[tuple[Any, ...]]) -> list[Any]:
    """The answers to these commands, in one round trip."""
    with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        return pipeline.execute()


def spoil(client: redis.Redis, key: bytes) -> None:
    """The key becomes a stream, which fileq never keeps."""
    client.delete(key)
    client.xadd(key, {"spoilt": "yes"})


# the verbs


Invocation = Callable[[RedisBroker], Any]


class Verb(NamedTuple):
    """A call worth breaking: `prepare` sets the scene and gives the call; `again` is the answer to its repetition."""

    name: str
    prepare: Callable[[Store], Invocation]
    again: Callable[[Any], Any] = lambda answer: answer


def claimed(store: Store, *slots: str, ids: tuple[str, ...] = ()) -> list[Claim]:
    """These slots, registered, each with a job; ids are a, b, … unless given."""
    ids = ids or tuple("abcdefgh"[: len(slots)])
    enqueue(store, *ids)
    register(store, *slots)
    claims = store.broker.settle_and_claim([], slots).claims
    assert len(claims) == len(slots)
    return list(claims)


def _settling(make: Callable[[Claim], Any]) -> Callable[[Store], Invocation]:
    def prepare(store: Store) -> Invocation:
        settlements = [make(claim) for claim in claimed(store, "w1", "w2")]
        return lambda broker: list(broker.settle_and_claim(settlements, []).settled)

    return prepare


def _done_already(answer: list[Any]) -> list[str]:
    return ["done already"] * len(answer)


def _fenced(answer: Any) -> Any:
    return ("fenced",) * len(answer)


def _enqueue(store: Store) -> Invocation:
    # A window under way that outlives the test: its end is the one thing here that depends on the server's clock.
    store.client.set("jobqueue:rate_limit:producer", 3, ex=600)
    entries = [
        an_entry("a", version=Version(b"/data/a", "s1")),
        an_entry("b", queue="high"),
        an_entry("c", delay_ms=60_000),
        an_entry("d", version=Version(b"/data/a", "s2"), always=True),
    ]
    return lambda broker: list(broker.enqueue(entries, limit=10).fates)


def _claim(store: Store) -> Invocation:
    enqueue(store, "a", queue="high")
    store.client.lpush("jobqueue:low_priority", foreign("b"), GARBAGE)
    register(store, "w1", "w2", "w3")
    return lambda broker: [(c.slot, c.raw) for c in broker.settle_and_claim([], ["w1", "w2", "w3"]).claims]


def _turn(store: Store) -> Invocation:
    claims = claimed(store, "w1", "w2", "w3", "w4", "w5")
    enqueue(store, "x1", "x2", "x3")
    settlements = [make(claim) for make, claim in zip(EVERY_WAY, claims, strict=True)]

    def call(broker: RedisBroker) -> Any:
        turn: TurnReply = broker.settle_and_claim(settlements, [claim.slot for claim in claims])
        return list(turn.settled), [(c.slot, c.raw) for c in turn.claims]

    return call


def _renew(store: Store) -> Invocation:
    held, wanted, unexpected = claimed(store, "w1", "w2", "w3")
    register(store, "w4")
    store.broker.cancel([wanted.id])
    believed = [("w1", held.raw), ("w2", wanted.raw), ("w3", b""), ("w4", b""), ("w5", b"")]
    assert unexpected.slot == "w3"
    return lambda broker: [(r.slot, r.hold, r.claim and r.claim.raw) for r in broker.renew(believed)]


def _promote(store: Store) -> Invocation:
    enqueue(store, "a", "b", delay_ms=5_000)
    enqueue(store, "c", delay_ms=60_000, queue="high")
    store.client.zadd("jobqueue:scheduled", {GARBAGE: 1})
    store.advance(10)
    return lambda broker: broker.promote().count


def _reaping(make: Callable[[Claim], Any]) -> Callable[[Store], Invocation]:
    def prepare(store: Store) -> Invocation:
        [claim] = claimed(store, "w1")
        store.client.delete("jobqueue:processing:worker:w1")
        return lambda broker: broker.reap("w1", [make(claim)])

    return prepare


def _register(store: Store) -> Invocation:
    register(store, "w1")
    return lambda broker: register(store, "w1", "w2", broker=broker)


def _deregister(store: Store) -> Invocation:
    claimed(store, "w1", "w2")
    store.client.lpush("jobqueue:worker:w2:processing", GARBAGE)
    return lambda broker: broker.deregister(["w1", "w2", "w3"])


def _withdraw(store: Store) -> Invocation:
    claimed(store, "w1", ids=("running",))
    enqueue(store, "waiting")
    enqueue(store, "later", delay_ms=60_000)
    return lambda broker: broker.cancel(["running", "waiting", "later", "unknown"])


def buried(store: Store) -> list[tuple[str, bytes]]:
    """(id, element) of a dead job and of dead bytes that are no job."""
    enqueue(store, "a")
    store.client.lpush("jobqueue:low_priority", GARBAGE)
    register(store, "w1", "w2")
    settlements = [burial(claim) for claim in store.broker.settle_and_claim([], ["w1", "w2"]).claims]
    assert list(store.broker.settle_and_claim(settlements, []).settled) == ["done"] * 2
    return [("a", settlements[0].raw), (raw_id(GARBAGE), GARBAGE)]


def _revive(store: Store) -> Invocation:
    (id, raw), (garbage_id, garbage) = buried(store)
    again = encode(decode(raw).but(error=None, failed_at=None))
    revivals = [Revival(raw, id, again, "low"), Revival(garbage, garbage_id, garbage, "high")]
    return lambda broker: broker.revive(revivals)


def _discard(store: Store) -> Invocation:
    elements = buried(store)
    return lambda broker: broker.discard(elements)


def _revise(store: Store) -> Invocation:
    for n, path in enumerate((b"/data/a", b"/data/b")):
        enqueue(store, f"job{n}", version=Version(path, "s1"))
    was = {path: entry for path, entry in store.broker.ledger(b"/data") if entry}
    missing = LedgerEntry((("s1", "job0"),), missing_since_ms=START_MS, device="8:1")
    changes = [(b"/data/a", was[b"/data/a"], missing), (b"/data/b", was[b"/data/b"], None)]
    return lambda broker: broker.update_ledger(changes)


def _pause(store: Store) -> Invocation:
    return lambda broker: broker.pause("low")


def _resume(store: Store) -> Invocation:
    store.broker.pause("low")
    return lambda broker: broker.resume("low")


def _reinstate(store: Store) -> Invocation:
    """A job of each kind that is nowhere, and one that is where it should be."""
    claimed(store, "w1", ids=("running",))
    enqueue(store, "waiting", "there")
    enqueue(store, "later", delay_ms=60_000)
    buried(store)
    store.client.delete("jobqueue:worker:w1:processing", "jobqueue:scheduled", "jobqueue:dead_letter")
    assert store.client.rpop("jobqueue:low_priority")
    ids = ["running", "waiting", "there", "later", "a", "unknown"]
    return lambda broker: broker.restore(ids)


def _rerecord(store: Store) -> Invocation:
    enqueue(store, "waiting", "there")
    enqueue(store, "later", delay_ms=60_000)
    raws = {id: store.client.hget(f"jobqueue:job:{id}", "json") for id in ("waiting", "there", "later")}
    store.client.delete("jobqueue:job:waiting", "jobqueue:job:later")
    places = {"waiting": "low", "there": "low", "later": "scheduled"}
    strays = [UnrecordedJob(places[id], Record(id, State.PENDING, raw, "low")) for id, raw in raws.items()]
    return lambda broker: broker.create_record(strays)


def _balance(store: Store) -> Invocation:
    claimed(store, "w1")
    store.client.hincrby("jobqueue:stats", "produced", 2)
    return lambda broker: broker.balance(2)


def leaving(claim: Claim) -> Any:
    """Completed, with a result and a version of its file that the ledger is to know."""
    return complete(claim, result=b'{"pages":3}', duration_ms=12, leaves=Version(b"/data/a", "s9"))


EVERY_WAY = (leaving, failed, burial, release, cancel)

VERBS = (
    Verb("enqueue", _enqueue),
    Verb("claim", _claim),
    Verb("complete", _settling(leaving), _done_already),
    Verb("retry", _settling(failed), _done_already),
    Verb("bury", _settling(burial), _done_already),
    Verb("release", _settling(release), _done_already),
    Verb("cancel", _settling(cancel), _done_already),
    Verb("settle_and_claim", _turn, lambda answer: (_done_already(answer[0]), answer[1])),
    Verb("renew", _renew),
    Verb("promote", _promote, lambda answer: 0),
    Verb("reap", _reaping(recovered), _fenced),
    Verb("reap by retry", _reaping(lambda c: retry(c, c.raw, delay_ms=500, error="died", died=True)), _fenced),
    Verb("reap by bury", _reaping(lambda c: burial(c, died=True)), _fenced),
    Verb("register", _register),
    Verb("deregister", _deregister),
    Verb("cancel by id", _withdraw, lambda answer: ["requested", "ended", "ended", "unknown"]),
    Verb("revive", _revive, lambda answer: [False, False]),
    Verb("discard", _discard, lambda answer: 0),
    Verb("update_ledger", _revise, lambda answer: [False, False]),
    Verb("pause", _pause),
    Verb("resume", _resume),
    Verb("restore", _reinstate, lambda answer: [False] * len(answer)),
    Verb("create_record", _rerecord, lambda answer: [False] * len(answer)),
    Verb("balance", _balance, lambda answer: False),
)


@contextlib.contextmanager
def opened(server: Server, **settings: Any) -> Iterator[Store]:
    with Store(server, clock=FakeClock(), **settings) as store:
        yield store


# the whole way of a job


EVENTS_OF_A_LIFE = {
    *("job:created", "job:started", "job:completed", "job:failed", "job:dead", "job:recovered", "job:cancelled")
}


def whole_life(broker: RedisBroker, client: Any, *, is_heard: bool = True) -> None:
    """Every verb and every look once, by whatever way this broker reaches its server; the books balance at the end.

    `client` does what other programs do: push a job, lose a heartbeat."""
    with contextlib.ExitStack() as stack:
        waiter = stack.enter_context(contextlib.closing(broker.waiter()))
        heard = stack.enter_context(contextlib.closing(broker.subscribe())) if is_heard else None
        broker.register(dict.fromkeys(("w1", "w2"), worker_info()))
        waiter.arm()
        _come_and_go(broker, waiter)
        _fail_and_die(broker, client)
        _look_around(broker)
        _leave(broker, client)
        census = broker.census()
        assert census.drift == 0, census
        if heard is not None:
            events = {json.loads(event)["event"] for event in iter(lambda: heard.get(0.05), None)}
            assert events == EVENTS_OF_A_LIFE


def _come_and_go(broker: RedisBroker, waiter: Any) -> None:
    """Enqueued, waited for, claimed, renewed, completed; a version once only, and no more than the limit."""
    version = Version(b"/data/a", "s1")
    entries = [
        an_entry("a", version=version),
        an_entry("b", queue="high"),
        an_entry("c", delay_ms=1),
        an_entry("d", version=version),
        an_entry("d", version=Version(b"/data/d", "s1")),
    ]
    fates = ["enqueued", "enqueued", "enqueued", "known", "throttled"]
    assert list(broker.enqueue(entries, limit=1).fates) == fates
    assert waiter.wait(10)
    first, second = broker.settle_and_claim([], ["w1", "w2"]).claims
    assert (first.id, second.id) == ("b", "a")
    assert [r.hold for r in broker.renew([("w1", first.raw), ("w2", b"")])] == ["held", "unexpected"]
    turn = broker.settle_and_claim([leaving(first), failed(second, delay_ms=1)], ["w1"])
    assert list(turn.settled) == ["done", "done"]
    wait_until(lambda: broker.promote().next_due_ms is None, what="all due jobs are promoted")


def _fail_and_die(broker: RedisBroker, client: Any) -> None:
    """Buried, revived, discarded; released; given back after a death; done for another program."""
    claims = {claim.id: claim for claim in broker.settle_and_claim([], ["w1", "w2"]).claims}
    dead, released = burial(claims["a"]), release(claims["c"])
    assert list(broker.settle_and_claim([dead, released], []).settled) == ["done", "done"]
    again = encode(decode(dead.raw).but(error=None, failed_at=None))
    assert broker.revive([Revival(dead.raw, "a", again, "low")]) == [True]
    client.lpush(broker.names.queues[1], foreign("other"))
    broker.pause("high")
    claims = {claim.id: claim for claim in broker.settle_and_claim([], ["w1", "w2"]).claims}
    broker.resume("high")
    dead = burial(claims["a"])
    assert list(broker.settle_and_claim([dead], []).settled) == ["done"]
    assert broker.discard([("a", dead.raw)]) == 1
    client.delete(broker.names.heartbeat(claims["c"].slot))
    [suspect] = broker.suspects(sweep=True)
    assert list(broker.reap(suspect.slot, [recovered(claim) for claim in suspect.claims])) == ["done"]


def _look_around(broker: RedisBroker) -> None:
    assert len(broker.workers()) == 1
    assert [record is not None for record in broker.records(["a", "b", "c"])] == [False, True, True]
    for place in ("high", "low", "scheduled", "completed", "dead_letter", "cancelled"):
        assert broker.peek(place, 5) == [raw for page in broker.pages(place) for raw in page]
    [entry] = broker.lookup([b"/data/a"])
    assert entry is not None
    assert dict(broker.ledger(b"/data")) == {b"/data/a": entry}
    assert broker.update_ledger([(b"/data/a", entry, LedgerEntry((("s2", "x"),)))]) == [True]
    assert broker.hourly(2)
    assert len(broker.overview().workers) == 1
    ids = [id for page in broker.ids() for id in page]
    assert {"b", "c"} <= set(ids)
    assert broker.lost(ids) == broker.restore(ids) == [False] * len(ids)
    drift = broker.census().drift
    assert broker.balance(drift, drift) is True


def _leave(broker: RedisBroker, client: Any) -> None:
    """Cancelled while waiting and while running; what a slot still holds when it goes is there for the next."""
    [slot] = [view.slot for view in broker.workers()]
    broker.enqueue([an_entry("e"), an_entry("f", delay_ms=60_000)])
    ids = [claim.id for claim in broker.settle_and_claim([], [slot]).claims]
    assert [str(word) for word in broker.cancel([*ids, "f"])] == ["requested", "cancelled"]
    [claim] = broker.settle_and_claim([], [slot]).claims
    assert list(broker.settle_and_claim([cancel(claim)], [slot]).settled) == ["done"]
    broker.deregister([slot])
    assert broker.census().running == 0
    broker.register({"w9": worker_info()})
    for _ in range(2):
        for claim in broker.settle_and_claim([], ["w9"]).claims:
            broker.settle_and_claim([complete(claim)], [])
    client.lpush(broker.names.queues[0], foreign("last"))
    [claim] = broker.settle_and_claim([], ["w9"]).claims
    assert list(broker.settle_and_claim([complete(claim)], []).settled) == ["done"]
    broker.deregister(["w9"])
