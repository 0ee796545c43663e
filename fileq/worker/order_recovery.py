"""Does the orders that workers left behind: what they had to do with files after their jobs, before they were killed.

Takes the orders of slots that are not registered, and those older than a lease. Two workers may do the same order: the
second one finds that its file is gone. An order of a root that is missing waits.

What a kill -9 leaves: the orders that are not finished; another worker does them.
"""

from __future__ import annotations

import time

from fileq.brokers.file_orders import Order
from fileq.brokers.protocol import Broker
from fileq.config import Config
from fileq.core.events import Emit, ignore
from fileq.core.settlement import Verb
from fileq.files.paths import Paths
from fileq.worker.file_action import FileAction
from fileq.worker.post_actions import FINISHED_AT_ONCE, act, rules_of
from fileq.worker.roots import RootsWatch

LONGEST_TURN_S = 10.0  # a loop that turns for a minute counts as stuck


class OrderRecovery:
    """One look at all orders per turn. Owns no thread."""

    name = "orders"

    def __init__(self, config: Config, broker: Broker, paths: Paths, roots: RootsWatch, *, emit: Emit = ignore) -> None:
        self._rules = rules_of(config.worker.after)
        self._lease_ms = round(config.worker.heartbeat_ttl * 1000)
        self._interval_s = config.worker.reap_interval
        self._broker = broker
        self._paths = paths
        self._roots = roots
        self._emit = emit

    def turn(self) -> float:
        """Does the orders that are left. Returns the seconds until the next turn."""
        done: list[tuple[str, bytes]] = []
        ends_s, pause_s = time.monotonic() + LONGEST_TURN_S, self._interval_s
        for order in self._broker.orders(self._lease_ms):
            moved_to = self._do(order)
            if moved_to is not None:
                done.append((order.id, moved_to))
            if len(done) >= FINISHED_AT_ONCE:
                self._broker.finish_orders(done)
                done = []
            if time.monotonic() >= ends_s:
                pause_s = 0.0  # the next turn goes on: the orders that are done are gone
                break
        if done:
            self._broker.finish_orders(done)
        return pause_s

    def _do(self, order: Order) -> bytes | None:
        """The new path of the file, or b"" if there is none; None if the order is to be done later."""
        first, _, path = order.body.partition(b"\n")
        verb, _, processed = first.decode(errors="replace").partition(" ")
        rule = self._rules.get(Verb(verb)) if verb in list(Verb) else None
        if rule is None or not path:
            return b""  # its file is kept by the configuration of this worker
        here = self._paths.here(path)
        if self._roots.obstacle(here):
            return None
        action = FileAction(order.id, rule, here, self._paths.allowed, self._paths.folders, processed or None)
        moved_to = act(action, self._emit, looks_for_moved=True)
        return self._paths.there(moved_to) if moved_to else moved_to
