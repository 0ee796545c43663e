"""`--once`: one scan, a job for every new file that is stable within a minute, a summary. For cron and CI.

A kill -9 loses only time: the next run finds what this one did not enqueue.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from fileq.core.events import SkipReason
from fileq.core.units import short_duration
from fileq.producer.enqueuer import RATE_LIMIT
from fileq.producer.producer import Producer

PATIENCE_S = 60.0  # for files that are still being written
LONGEST_PAUSE_S = 0.2  # so that the progress line moves
Tick = Callable[[Producer], None]


class ProducerSummary(Struct, frozen=True):
    found: int
    enqueued: int
    known: int
    skipped: dict[str, int]
    unstable: int
    seconds: float

    def __str__(self) -> str:
        parts = [f"found {self.found}", f"enqueued {self.enqueued}", f"already known {self.known}"]
        parts += [f"skipped {count} ({reason})" for reason, count in sorted(self.skipped.items())]
        if self.unstable:
            parts.append(f"still being written {self.unstable}")
        return f"{', '.join(parts)} in {short_duration(self.seconds)}"


def produce_once(
    producer: Producer, tick: Tick = lambda producer: None, monotonic: Callable[[], float] = time.monotonic
) -> ProducerSummary:
    """Returns when nothing is left to do, or when only files are left that kept changing for a minute."""
    started_s = busy_s = monotonic()
    while not producer.is_idle:
        pause_s = producer.turn()
        tick(producer)
        if not producer.waits_only_for_writers:
            busy_s = monotonic()
        elif monotonic() - busy_s > PATIENCE_S:
            break
        if not producer.is_idle:
            producer.wake.wait(min(pause_s, LONGEST_PAUSE_S))
    return _summary(producer, monotonic() - started_s)


def _summary(producer: Producer, seconds: float) -> ProducerSummary:
    counts = producer.counts
    # A file that changed while it waited is tried again, and counted by the last result.
    skipped = {reason.value: n for reason, n in counts.skipped.items() if reason is not SkipReason.CHANGING}
    return ProducerSummary(counts.found, counts.enqueued, counts.known, skipped, len(producer.stability), seconds)


def progress(producer: Producer, rate_limit_key: str) -> str:
    """The progress line of one scan."""
    counts = producer.counts
    parts = [f"found {counts.found:,}", f"enqueued {counts.enqueued:,}", f"known {counts.known:,}"]
    return "  ".join([*parts, *describe(producer, rate_limit_key)])


def describe(producer: Producer, rate_limit_key: str) -> Iterator[str]:
    """What the producer waits for, and the setting that slows it down, if one does."""
    if len(producer.stability):
        yield f"still being written {len(producer.stability):,}"
    if (hold := producer.enqueuer.hold) is not None:
        shared = f" (shared: {rate_limit_key})" if hold.reason == RATE_LIMIT else ""
        yield f"held by {hold.reason}{shared}"


# The progress line at the bottom of a terminal

Show = Callable[[str], None]


@contextmanager
def live_line(text: str) -> Iterator[tuple[Show, bool]]:
    """Yields a function that changes the line, and whether there is one: only if stderr is a terminal. The line
    disappears at the end."""
    if not sys.stderr.isatty():
        yield lambda text: None, False
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = Console(stderr=True)
    # Long text is wrapped, not cut: its end often explains the rest. Some columns stay free, because the "^C" that the
    # terminal echoes would otherwise wrap and leave a stale line behind.
    room = Column(no_wrap=False, max_width=max(20, console.width - 16))
    words = TextColumn("{task.description}", markup=False, table_column=room)
    with Progress(SpinnerColumn(), TimeElapsedColumn(), words, console=console, transient=True) as bar:
        task = bar.add_task(text)
        yield lambda text: bar.update(task, description=text), True
