"""A server whose memory is full: it accepts no new job, and every job it has can still end."""

import contextlib
import re
from collections.abc import Iterator
from importlib import resources

import pytest

from fileq.brokers.redis.scripts import ENQUEUE_MEMBERS, LOOKS, VARIANTS, script
from fileq.core.errors import BrokerUnavailable
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import enqueue, ids_in, names, register
from tests.support.redis_calls import CALLS
from tests.support.redis_store import Store, dump, opened


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with Store(redis_server) as store:
        yield store


@contextlib.contextmanager
def full(store: Store) -> Iterator[None]:
    store.client.config_set("maxmemory", 1)
    yield
    store.client.config_set("maxmemory", 0)


def test_a_full_server_refuses_new_jobs_and_drains_the_others(store):
    """Otherwise it would stay full for ever."""
    enqueue(store, *names(40))
    enqueue(store, "later", delay_ms=1)
    register(store, "w1", "w2")
    with full(store):
        for _ in range(2):
            with pytest.raises(BrokerUnavailable, match=r"is unavailable: .*maxmemory"):
                enqueue(store, "new")
        done = 0
        while claims := store.broker.settle_and_claim([], ["w1", "w2"]).claims:
            assert {r.status for r in store.broker.renew([(c.slot, c.raw) for c in claims])} == {"held"}
            answers = store.broker.settle_and_claim([complete(c) for c in claims], []).settled
            done += answers.count(SettleResult.DONE)
            store.broker.promote()
        assert done == 41
        assert store.broker.census().drift == 0
    enqueue(store, "new")
    assert ids_in(store, "low") == ["new"]


def test_a_full_server_accepts_the_scripts_that_it_does_not_have(store):
    """As a worker that starts then needs them."""
    enqueue(store, "a")
    register(store, "w1")
    with full(store):
        store.client.script_flush()
        [claim] = store.broker.settle_and_claim([], ["w1"]).claims
        assert store.broker.settle_and_claim([complete(claim)], []).settled == (SettleResult.DONE,)


REFUSED_WHEN_FULL = {
    *(
        "enqueue",
        "enqueue one",
        "enqueue with unique keys",
        "revive",
        "revive with a unique key",
        "pause",
        "restore",
        "create_record",
    ),
    *("fire", "fire and skip", "fire and queue", "fire and withdraw", "fire and ask to stop", "put_document"),
    *("enqueue members", "create_batch", "join_batch", "revive a member"),
}


def test_a_full_server_still_lets_every_job_end(redis_server):
    """Refused is only what adds data: enqueue, revive, fire, documents, the repairs, and pause, which is a plain
    command. Follow-ups are part of an end."""
    with opened(redis_server) as store:
        for subject in CALLS:
            call = subject.prepare(store)
            before = dump(store.client)
            with full(store):
                if subject.name not in REFUSED_WHEN_FULL:
                    call(store.broker)
                else:
                    with pytest.raises(BrokerUnavailable, match="maxmemory"):
                        call(store.broker)
                    assert dump(store.client) == before
            store.empty()


# The scripts that add data. The others that write settle, free memory, or write a few bytes.
ADDING = {
    *("enqueue", ENQUEUE_MEMBERS, "enqueue_plain", "revive", "fire", "create_batch", "join_batch", "put_document"),
    *("restore", "create_record"),
}
CALLED = re.compile(rb"(?:redis\.p?call|read|run)\('(\w+)'")
LUA = resources.files("fileq.brokers.redis") / "lua"
FILES = {file.name.removesuffix(".lua"): file.read_text() for file in LUA.iterdir() if file.is_file()}


@pytest.mark.parametrize(
    "name", sorted({name for name, text in FILES.items() if text.startswith("#!")} | VARIANTS.keys())
)
def test_a_script_is_declared_as_what_it_does(name, redis_server):
    """medium: a full Redis made `batch list` and `fsck` fail. A script that only reads is declared so; of those that
    write, only the ones that add data are refused by a full server."""
    text = script(name).text
    flags = text.split(b"\n", 1)[0].removeprefix(b"#!lua").strip().removeprefix(b"flags=")
    commands = sorted({command.decode() for command in CALLED.findall(text)})
    with opened(redis_server) as store:
        facts = store.client.execute_command("COMMAND", "INFO", *commands)
    writes = {command for command, fact in zip(commands, facts.values(), strict=True) if "write" in fact["flags"]}
    if name in LOOKS or not writes:
        assert flags == b"no-writes", writes
    else:
        assert flags == (b"" if name in ADDING else b"allow-oom"), writes


def test_waiters_wait_on_a_full_server_for_what_is_left(store):
    """A full Redis drains: what waits there is found, and handed on."""
    enqueue(store, "a", "b", queue="low")
    store.broker.pause("low")
    with (
        contextlib.closing(store.broker.waiter()) as waiter,
        contextlib.closing(store.another().waiter()) as other,
        full(store),
    ):
        waiter.arm()
        other.arm()
        assert [waiter.wait(0.05), other.wait(0.05)] == [False, False]
        store.broker.resume("low")
        assert waiter.wait(10) is True
        assert other.wait(10) is True
