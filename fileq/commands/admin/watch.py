"""`stats --watch`: one look after another until somebody has seen enough; goes on when the broker is away."""

from __future__ import annotations

import time
from collections.abc import Callable

from fileq.brokers.protocol import FullBroker
from fileq.commands.admin.stats import Recent, Stats, gather
from fileq.commands.admin.text import age
from fileq.core.errors import BrokerUnavailable

Open = Callable[[], FullBroker]
Show = Callable[[Stats | None, str], None]  # the last stats, and what is wrong now ("" = nothing)


def watch(
    open_broker: Open, show: Show, interval_s: float, *, sleep: Callable[[float], None] = time.sleep, looks: int = 0
) -> None:
    """Look and show, every so many seconds, for ever or `looks` times. Whoever is away is asked again each time."""
    broker = open_broker()  # the first failure is the caller's: nothing has been seen yet
    recent = Recent()
    stats: Stats | None = None
    away_since_s = 0.0
    done = 0
    while True:
        try:
            stats = gather(broker, recent)
            away_since_s = 0.0
            show(stats, "")
        except BrokerUnavailable as error:
            now_s = time.monotonic()
            away_since_s = away_since_s or now_s
            show(stats, f"away for {age(now_s - away_since_s)}, trying again: {error}")
        done += 1
        if done == looks:
            return
        sleep(interval_s)
