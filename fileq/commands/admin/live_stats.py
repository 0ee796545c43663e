"""`fileq stats --watch`: shows the stats again and again, also while the broker is unreachable."""

from __future__ import annotations

import time
from collections.abc import Callable

from fileq.brokers.protocol import FullBroker
from fileq.commands.admin.formatting import age
from fileq.commands.admin.stats import RecentTotals, Stats, gather
from fileq.core.errors import BrokerUnavailable

Open = Callable[[], FullBroker]
Show = Callable[[Stats | None, str], None]  # the last stats, and the outage ("" while the broker answers)


def watch(
    open_broker: Open, show: Show, interval_s: float, *, sleep: Callable[[float], None] = time.sleep, times: int = 0
) -> None:
    """Shows the stats every `interval_s`, for ever or `times` times. An unreachable broker is tried each time."""
    broker = open_broker()  # a failure here is raised: nothing has been shown yet
    recent = RecentTotals()
    stats: Stats | None = None
    down_since_s = 0.0
    shown = 0
    while True:
        try:
            stats = gather(broker, recent)
            down_since_s = 0.0
            show(stats, "")
        except BrokerUnavailable as error:
            now_s = time.monotonic()
            down_since_s = down_since_s or now_s
            show(stats, f"unreachable for {age(now_s - down_since_s)}, trying again: {error}")
        shown += 1
        if shown == times:
            return
        sleep(interval_s)
