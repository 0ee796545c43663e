"""The operations of clients on batches, on a broker. batch_changes.py has those that are more than one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from fileq.brokers.batches import BatchPage, BatchView
from fileq.brokers.protocol import FullBroker
from fileq.client.batch_changes import cancel_batch, new_batch, retry_batch, seal_batch
from fileq.client.transport import BatchRequest, BatchRetry, DeadPage
from fileq.config import Config
from fileq.core.job import State
from fileq.webhooks.subscriptions import Withdrawals


class BrokerBatches:
    """Implements BatchTransport."""

    def __init__(self, broker: FullBroker, config: Config, clock: Callable[[], int]) -> None:
        self._broker = broker
        self._config = config
        self._clock = clock

    def create(self, request: BatchRequest) -> None:
        now = datetime.fromtimestamp(self._clock() / 1000, UTC)
        self._broker.create_batch(new_batch(self._config, request, now))

    def by_id(self, ids: Sequence[str]) -> list[BatchView | None]:
        return self._broker.batches_by_id(ids)

    def page(self, cursor: str, limit: int, *, unfinished: bool) -> BatchPage:
        return self._broker.batch_page(cursor, limit, unfinished=unfinished)

    def seal(self, id: str) -> bool:
        return seal_batch(self._broker, id)

    def cancel(self, id: str) -> bool:
        return cancel_batch(self._broker, id, Withdrawals(self._broker, self._config, self._clock))

    def retry(self, id: str) -> BatchRetry:
        return retry_batch(self._broker, self._config, id)

    def dead_page(self, id: str, cursor: str) -> DeadPage:
        page = self._broker.dead_members(id, cursor)
        records = self._broker.records(page.ids) if page.ids else []
        dead = (one for one in records if one is not None and one.state is State.DEAD)
        return DeadPage(tuple(dead), page.next_cursor)
