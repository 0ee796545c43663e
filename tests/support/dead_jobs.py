"""Makes dead jobs on a broker, as a worker does."""

from datetime import UTC, datetime

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Entry
from fileq.core.job import typed_job, wall_clock_ms
from fileq.core.settlement import Settlement
from fileq.testing.conformance.builders import burial, worker_info

SLOTS = 100


def bury(
    broker: FullBroker, count: int = 0, *, type: str = "report", error: str = "ValueError: row {n} is bad"
) -> None:
    """Enqueues this many jobs; then every job that waits dies."""
    now = datetime.now(UTC)
    broker.enqueue([Entry(typed_job(type, None, priority="low", now=now), "low") for _ in range(count)])
    slots = {f"slot-{n}": worker_info() for n in range(SLOTS)}
    broker.register(slots)
    settlements: list[Settlement] = []
    while claims := broker.settle_and_claim(settlements, list(slots)).claims:
        now_ms = wall_clock_ms()
        settlements = [burial(claim, error=error.format(n=n), now_ms=now_ms) for n, claim in enumerate(claims)]
    broker.deregister(list(slots))
