"""What the tests of Sentinel, Cluster and other connections share."""

import contextlib
from collections.abc import Iterator
from typing import Any

from fileq.brokers.redis import RedisBroker, open_redis
from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.core.settlement import SettleResult, complete
from tests.support.redis_store import config_on


@contextlib.contextmanager
def broker_on(**settings: Any) -> Iterator[RedisBroker]:
    with contextlib.closing(open_redis(config_on(**settings))) as broker:
        yield broker


def claim_and_complete(broker: RedisBroker, slot: str = "w1") -> str:
    [claim] = broker.settle_and_claim([], [slot]).claims
    assert broker.settle_and_claim([complete(claim)], []).settled == (SettleResult.DONE,)
    return claim.id


def outcome_of(broker: RedisBroker) -> str:
    try:
        broker.promote()
    except BrokerUnavailable:
        return "away"
    except BrokerError as error:
        return str(error)
    return "done"
