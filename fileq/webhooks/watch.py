"""Keeps the webhooks in effect up to date: asks the catalog for its revision every two seconds, off the hot path.

What a kill -9 leaves: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from fileq.core.errors import BrokerError
from fileq.core.events import Emit, WebhooksInvalid
from fileq.webhooks.store import KnownWebhook, WebhookStore
from fileq.webhooks.subscriptions import Subscriptions

CHECK_EVERY_S = 2.0  # definitions take effect within 5 s


class WebhookWatch:
    """Owns no thread. `known` are all webhooks by name, disabled ones included."""

    name = "webhooks"

    def __init__(self, store: WebhookStore, subscriptions: Subscriptions, emit: Emit) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._emit = emit
        self._revision: tuple[int, int] | None = None
        self._problems: list[str] = []
        self.known: Mapping[str, KnownWebhook] = {}

    def start(self) -> None:
        """Reads the definitions before the first claim. If the broker is unreachable, a later turn() does it."""
        try:
            self.turn()
        except BrokerError:
            return

    def turn(self) -> float:
        """Reads the definitions if one was changed. Returns the seconds until the next turn."""
        revision = self._store.revision()  # before the documents: a change in between is read again
        if revision != self._revision:
            known = self._store.load()
            problems = [*self._store.problems, *self._subscriptions.set(known.values())]
            self.known, self._revision = known, revision
            if problems and problems != self._problems:
                self._emit(WebhooksInvalid(problems))
            self._problems = problems
        return CHECK_EVERY_S
