"""The rule of repetition for files that are enqueued again (fileq/actions/reprocess.py), over every broker."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from fileq.actions.reprocess import ReprocessReport, reprocess
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Entry, LedgerEntry
from fileq.core.job import Version, decode, file_job
from fileq.core.settlement import complete
from fileq.queries.job_filter import JobFilter
from fileq.testing.conformance.builders import claims_of, drift, names, raws_in
from fileq.testing.conformance.concurrency import run_concurrently
from fileq.testing.conformance.harness import Harness

FILES = 700
SLOTS = names(FILES, "slot")


@pytest.fixture
def paths(harness: Harness, tmp_path: Path) -> list[bytes]:
    """Files that were processed once."""
    paths = [os.fsencode(tmp_path / f"{name}.txt") for name in names(FILES)]
    entries = []
    for path in paths:
        Path(os.fsdecode(path)).write_bytes(b"four")
        signature = f"4-{os.stat(path).st_mtime_ns}"
        job = file_job(path, size=4, priority="low", now=datetime.now(UTC), signature=signature)
        entries.append(Entry(job, "low", Version(path, signature)))
    harness.broker.enqueue(entries)
    complete_waiting(harness)
    harness.advance(1)
    return paths


def complete_waiting(harness: Harness) -> None:
    claims = claims_of(harness, *SLOTS)
    harness.broker.settle_and_claim([complete(claim) for claim in claims], [])


def again(harness: Harness, broker: FullBroker | None = None) -> ReprocessReport:
    return reprocess(broker or harness.broker, harness.config, wanted=JobFilter())


def waiting(harness: Harness) -> Counter[bytes]:
    return Counter(decode(raw).path for queue in ("high", "low") for raw in raws_in(harness, queue))


def test_two_actions_at_the_same_time_enqueue_each_file_once(harness: Harness, paths: list[bytes]) -> None:
    other = harness.another()
    reports = run_concurrently(lambda: again(harness), lambda: again(harness, other))
    assert sum(report.enqueued for report in reports) == FILES
    assert waiting(harness) == Counter(paths)
    assert drift(harness) == 0


class Overtaken:
    """Another action enqueues all files just before this one does."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.overtaking: ReprocessReport | None = None

    def enqueue(self, entries: list[Entry]) -> Any:
        if self.overtaking is None:
            self.overtaking = again(self._harness)
        return self._harness.broker.enqueue(entries)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._harness.broker, name)


def test_a_file_that_another_action_has_just_enqueued_is_counted_there(harness: Harness, paths: list[bytes]) -> None:
    broker = Overtaken(harness)
    report = again(harness, cast(FullBroker, broker))
    assert broker.overtaking is not None
    assert (broker.overtaking.enqueued, report.enqueued, report.unfinished) == (FILES, 0, FILES)
    assert waiting(harness) == Counter(paths)


class Killed(BaseException):
    """Ends an action as a kill -9 ends its process."""


def test_an_action_that_is_killed_and_repeated_enqueues_each_file_once(harness: Harness, paths: list[bytes]) -> None:
    def killed() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    left = FILES
    with pytest.raises(Killed):
        reprocess(harness.broker, harness.config, wanted=JobFilter(), on_entry=killed)
    first = sum(waiting(harness).values())
    report = again(harness)
    assert 0 < first < FILES
    assert (report.enqueued, report.unfinished) == (FILES - first, first)
    assert waiting(harness) == Counter(paths)


class Repeating:
    """A ledger that changes while it is read: it returns every entry again, after the new jobs have ended."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def ledger(self, under: bytes) -> Iterator[tuple[bytes, LedgerEntry]]:
        self._harness.advance(0.001)
        yield from self._harness.broker.ledger(under)
        complete_waiting(self._harness)
        yield from self._harness.broker.ledger(under)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._harness.broker, name)


def test_a_file_is_taken_once_although_its_new_job_ends_meanwhile(harness: Harness, paths: list[bytes]) -> None:
    report = again(harness, cast(FullBroker, Repeating(harness)))
    assert report.enqueued == FILES
    complete_waiting(harness)
    harness.advance(1)
    assert again(harness).enqueued == FILES, "the next action takes each again"
    assert waiting(harness) == Counter(paths)
