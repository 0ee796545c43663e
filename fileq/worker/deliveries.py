"""The webhooks of a worker: which are in effect, and one attempt of a delivery, in a thread.

Imports the code that sends requests when the first delivery runs: a worker without webhooks does not need it.

What a kill -9 leaves: deliveries in their slots. A reaper requeues them, and they are sent again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fileq.brokers.clocks import wall_clock_ms
from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.core.events import Emit
from fileq.core.job import decode_or_none
from fileq.core.outcome import Failed
from fileq.handlers.context import CancelFlag
from fileq.handlers.task import Ran, Task
from fileq.webhooks.store import WebhookStore
from fileq.webhooks.subscriptions import Subscriptions, WebhookWatch

if TYPE_CHECKING:
    from fileq.webhooks.attempt import DeliveryAttempts


class Deliveries:
    """`watch` is to be turned by a loop; `run` is for an executor."""

    def __init__(self, config: Config, broker: FullBroker, emit: Emit) -> None:
        self._settings = config.webhooks
        self._emit = emit
        self._store = WebhookStore(broker, config.webhooks, wall_clock_ms)
        self.subscriptions = Subscriptions(config.paths, config.worker.priorities[-1])
        self.watch = WebhookWatch(self._store, self.subscriptions, emit)
        self._lock = threading.Lock()
        self._attempts: DeliveryAttempts | None = None

    def run(self, task: Task, cancelled: CancelFlag) -> Ran:
        job = decode_or_none(task.raw)
        if job is None:
            return Failed("not a job", "Undecodable", is_permanent=True)
        return self._loaded().run(job, cancelled.is_set)

    def _loaded(self) -> DeliveryAttempts:
        with self._lock:
            if self._attempts is None:
                from fileq.webhooks.attempt import DeliveryAttempts
                from fileq.webhooks.sender import sender_of

                self._attempts = DeliveryAttempts(
                    self._store,
                    sender_of(self._settings),
                    lambda: self.watch.known,
                    emit=self._emit,
                    now_ms=wall_clock_ms,
                )
            return self._attempts
