"""A server whose memory is full: it accepts no new job, and every job it has can still end."""

import contextlib
import re
import select
import time
from collections.abc import Iterator
from importlib import resources

import pytest

from fileq.brokers.redis.scripts import ENQUEUE_MEMBERS, LOOKS, VARIANTS, script
from fileq.core.errors import BrokerUnavailable
from fileq.core.settlement import SettleResult, complete
from fileq.testing.conformance.builders import enqueue, ids_in, names, register
from tests.support.redis_calls import CALLS
from tests.support.redis_store import Store, dump, opened
from tests.support.waiting import wait_until


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
CALLED = re.compile(rb"(?:redis\.p?call|read)\('(\w+)'")
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


def test_while_the_server_is_full_a_waiter_lets_the_pump_claim_every_20_ms(store):
    """The server refuses its BLMOVE at once; if that counted as work, the pump would spin."""
    with contextlib.closing(store.broker.waiter()) as waiter, full(store):
        rounds, end = 0, time.monotonic() + 0.4
        while time.monotonic() < end:
            select.select([waiter], [], [], waiter.arm())
            rounds += 1
        assert 4 <= rounds <= 3 * 20 + 3, "one after each refusal, one after the pause"
        began = time.monotonic()
        assert [waiter.wait(10) for _ in range(5)] == [True] * 5
        assert 0.05 < time.monotonic() - began < 5


def test_a_waiter_waits_again_once_the_server_has_room(store):
    with contextlib.closing(store.broker.waiter()) as waiter:
        with full(store):
            waiter.arm()
            assert waiter.wait(10) is True
        wait_until(lambda: waiter.arm() > 0.02 and not waiter.wait(0.03))
        enqueue(store, "a")
        assert waiter.wait(10) is True
