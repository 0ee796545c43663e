"""A memory broker with a clock that the test moves, and any number of workers' schedulers on it."""

from __future__ import annotations

from typing import Any

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.schedules import ScheduleState
from fileq.config import config_from
from fileq.core.events import Event
from fileq.core.job import decode
from fileq.worker.scheduler import ScheduleFiring, Scheduler

MINUTE_MS = 60_000
START_MS = 1_800_000_000_000  # a whole minute
EACH_MINUTE = {"cron": "* * * * *", "type": "t"}


class BenchClock:
    def __init__(self) -> None:
        self.ms = START_MS

    def pass_ms(self, ms: int) -> None:
        self.ms += ms


class ScheduleBench:
    """One broker, and any number of workers' schedulers."""

    def __init__(self) -> None:
        self.clock = BenchClock()
        self.broker = MemoryBroker(config_from({"broker": "memory"}), clock=lambda: self.clock.ms)
        self.events: list[Event] = []

    def worker(self, *, webhooks: dict[str, Any] | None = None, **schedules: dict[str, Any]) -> Scheduler:
        config = config_from({"broker": "memory", "schedules": schedules, "webhooks": webhooks or {}})
        monotonic = lambda: self.clock.ms / 1000  # noqa: E731
        firing = ScheduleFiring(config, self.broker, emit=self.events.append, monotonic=monotonic)
        return Scheduler(self.broker, firing=firing, monotonic=monotonic)

    def run(self, worker: Scheduler, ms: int = 0, *, turns: int = 10) -> None:
        """Lets this much time pass, then turns."""
        self.clock.pass_ms(ms)
        for _ in range(turns):
            worker.turn()

    @property
    def ids(self) -> list[str]:
        return [decode(raw).id for raw in self.broker.peek("low", 1000)]

    def state(self, name: str = "s") -> ScheduleState:
        return self.broker.schedules()[name]

    def take(self) -> list[Event]:
        events = list(self.events)
        self.events.clear()
        return events
