"""Jobs that end in the ways that web pages have to explain, and the texts of these pages."""

from __future__ import annotations

import re
from typing import Any

from fileq.brokers.types import Entry, OpenBreaker, WorkerInfo
from fileq.core.job import Claim, encode, rfc3339_ms, wall_clock_ms
from fileq.core.settlement import Settlement, bury, defer
from fileq.worker.breakers import reason_of
from tests.support.console_pages import ConsolePages

SLOT, ROUTE, HOSTILE = "host-7-0-ffff", "**/*.csv", "<script>alert(1)</script>"
QUEUES = ("high", "low")


def pages_with_worker(**config: Any) -> ConsolePages:
    """One worker process, whose breaker is open; it tries again in 10 minutes."""
    pages = ConsolePages(worker={"priorities": list(QUEUES)}, **config)
    opened = OpenBreaker(ROUTE, "open", "OSError: no", 1.0, wall_clock_ms() + 600_000)
    info = WorkerInfo("host", 7, wall_clock_ms(), "1", QUEUES, breaker="open", breakers=(opened,), lease_ms=30_000)
    pages.broker.register({SLOT: info})
    return pages


def end(pages: ConsolePages, job: Any, how: Any, queue: str = "low", **entry: Any) -> None:
    """Enqueues a job, which must be the next one, and settles it."""
    pages.broker.enqueue([Entry(job, queue, **entry)])
    [claim] = pages.broker.settle_and_claim([], [SLOT]).claims
    assert claim.id == job.id
    pages.broker.settle_and_claim([how(claim)], [])


def dies(claim: Claim) -> Settlement:
    assert claim.job is not None
    raw = encode(claim.job.but(error="ValueError: page 3", failed_at=rfc3339_ms(wall_clock_ms())))
    return bury(claim, raw, error="ValueError: page 3", kind="ValueError")


def held(claim: Claim) -> Settlement:
    return defer(claim, reason=reason_of(ROUTE), delay_ms=600_000)


def shown(pages: ConsolePages, *addresses: str) -> list[str]:
    found = pages.show(addresses)
    assert [status for status, _ in found] == [200] * len(addresses), pages.events.events
    return [text for _, text in found]


def words(text: str) -> str:
    """The text between the tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def in_order(text: str, *parts: str) -> bool:
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)
