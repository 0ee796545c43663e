"""Every call about batches that changes something on Redis, with a scene for it. CALLS in redis_calls.py holds them."""

import re
from collections.abc import Callable
from typing import Any

from fileq.brokers.batches import NewBatch
from fileq.brokers.types import Revival
from fileq.core.job import Claim, decode, encode
from fileq.core.settlement import Settlement, cancel, complete
from fileq.testing.conformance.batch_builders import EVERY_KIND, callback, create, dead_raw, end, member
from fileq.testing.conformance.builders import a_job, burial, register
from tests.support.broker_calls import BrokerCall, Invocation
from tests.support.redis_store import Store


def family(store: Store, *ids: str) -> None:
    """A sealed batch with every callback and these members, the last member of its sealed parent."""
    create(store, *EVERY_KIND, id="p")
    create(store, *EVERY_KIND, parent="p")
    assert set(store.broker.enqueue([member(id) for id in ids]).results) == {"enqueued"}
    assert store.broker.seal_batch("b")
    assert store.broker.seal_batch("p")


def claims_of(store: Store, *ids: str) -> list[Claim]:
    family(store, *ids)
    slots = [f"w{n}" for n in range(len(ids))]
    register(store, *slots)
    return list(store.broker.settle_and_claim([], slots).claims)


def _settling(make: Callable[[Claim], Settlement]) -> Callable[[Store], Invocation]:
    def prepare(store: Store) -> Invocation:
        settlements = [make(claim) for claim in claims_of(store, "m1", "m2")]
        return lambda broker: list(broker.settle_and_claim(settlements, []).settled)

    return prepare


def _reaping(store: Store) -> Invocation:
    [claim] = claims_of(store, "m1")
    store.client.delete("jobqueue:processing:worker:w0")
    return lambda broker: broker.reap("w0", [burial(claim, died=True)])


def _bury_overdue(store: Store) -> Invocation:
    family(store, "m1")
    [record] = store.broker.records(["m1"])
    assert record is not None
    claim = Claim("", 0, "low", record.raw, decode(record.raw), "m1", store.clock.ms)
    return lambda broker: broker.bury_overdue([burial(claim, refused=True)])


def _cancel(store: Store) -> Invocation:
    family(store, "m1")
    return lambda broker: broker.cancel(["m1"])


def _clear(store: Store) -> Invocation:
    family(store, "m1")
    raws = store.broker.peek("low", 1)
    return lambda broker: broker.clear("low", raws)


def _enqueue(store: Store) -> Invocation:
    create(store)
    return lambda broker: list(broker.enqueue([member("m1"), member("m2"), member("m3", "unknown")]).results)


def _create(store: Store) -> Invocation:
    create(store, id="p")
    new = NewBatch("b", parent="p", callbacks=tuple(callback("b", kind) for kind in EVERY_KIND))
    return lambda broker: broker.create_batch(new)


def _seal(store: Store) -> Invocation:
    create(store, *EVERY_KIND)
    return lambda broker: broker.seal_batch("b")


def _cancel_batch(store: Store) -> Invocation:
    create(store, *EVERY_KIND, id="p")
    create(store, *EVERY_KIND, parent="p")
    return lambda broker: broker.cancel_batch("p")


def _join(store: Store) -> Invocation:
    create(store)
    store.broker.enqueue([member("waiting", joins=False)])
    return lambda broker: broker.join_batch("b", ["waiting", "unknown"])


def _count(store: Store) -> Invocation:
    family(store, "m1", "m2")
    store.client.delete("jobqueue:job:m1", "jobqueue:job:m2")
    return lambda broker: broker.count_members("b", ["m1", "m2"])


def _dead(store: Store) -> bytes:
    family(store, "m1")
    end(store, burial, "m1")
    return dead_raw(store, "m1")


def _revive(store: Store) -> Invocation:
    raw = _dead(store)
    again = Revival(raw, "m1", encode(a_job("m1", batch_id="b")), "low")
    return lambda broker: [revived.is_revived for revived in broker.revive([again])]


def _discard(store: Store) -> Invocation:
    raw = _dead(store)
    return lambda broker: broker.discard([("m1", raw)])


def _done_already(answer: list[Any]) -> list[str]:
    return ["done already"] * len(answer)


_ENDS = (
    BrokerCall("complete members", _settling(complete), _done_already),
    BrokerCall("bury members", _settling(burial), _done_already),
    BrokerCall("cancel members", _settling(cancel), _done_already),
    BrokerCall("reap a member", _reaping, lambda answer: ("fenced",)),
    BrokerCall("bury an overdue member", _bury_overdue, lambda answer: ("fenced",)),
    BrokerCall("cancel a member by id", _cancel, lambda answer: ["ended"]),
    BrokerCall("clear members", _clear, lambda answer: [False] * len(answer)),
    BrokerCall("revive a member", _revive, lambda answer: [False]),
    BrokerCall("discard a member", _discard, lambda answer: [False] * len(answer)),
)
_CALLBACKS = re.compile(rb"jobqueue:job:[bp]\.(then|catch|finally)")

BATCH_CALLS = (
    *_ENDS,
    BrokerCall("enqueue members", _enqueue),
    BrokerCall("create_batch", _create),
    BrokerCall("seal_batch", _seal, lambda answer: False),
    BrokerCall("cancel_batch", _cancel_batch, lambda answer: False),
    BrokerCall("join_batch", _join, lambda answer: ["member", "member"]),
    BrokerCall("count_members", _count, lambda answer: 0),
)


def is_tolerated(call: BrokerCall, key: bytes) -> bool:
    """Whether this call leaves a key of the wrong type alone and does the rest: no batch stops the end of a job or
    another batch, and a record of any type under the id of a callback means that the callback exists."""
    if call not in BATCH_CALLS:
        return False
    if _CALLBACKS.fullmatch(key):
        return True
    other = b"jobqueue:batch:b" if call.name == "cancel_batch" else b"jobqueue:batch:p"
    return key.startswith(b"jobqueue:batch" if call in _ENDS else other)
