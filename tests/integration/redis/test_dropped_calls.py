"""A call whose reply is given up: the next call must not read that reply."""

from collections.abc import Iterator

import pytest

from fileq.testing.conformance.builders import enqueue, register
from tests.support.redis_store import Store, opened


@pytest.fixture
def store(redis_server) -> Iterator[Store]:
    with opened(redis_server) as store:
        yield store


def test_after_a_dropped_call_the_next_one_reads_its_own_reply(store):
    enqueue(store, "a")
    register(store, "w1", "w2")
    for _ in range(3):
        store.broker.send_settle_and_claim([], ["w1"]).drop()
        assert store.broker.promote().count == 0
        assert store.broker.settle_and_claim([], ["w2"]).claims == ()
        assert store.broker.census().running == 1
