"""Bundles of four tasks for a process executor, all of whose children are ready."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fileq.core.outcome import Task, TaskOutcome
from fileq.worker.executors.process import executor
from tests.support.bundle_tasks import LOADER
from tests.support.executor_driver import key_of
from tests.support.process_executor import ProcessDriver, Start
from tests.support.thread_executor import AlwaysWait

SIZE = 4
NAMES = tuple("abcd")
ONCE = Counter(NAMES)


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """submit() waits for a child as long as it must: nothing but the end of the child makes it take tasks back."""
    monkeypatch.setattr(executor, "MAX_WAIT_S", 30.0)
    monkeypatch.setattr(executor, "TINY_S", 30.0)


def started(start: Start, argument: str = "", count: int = SIZE, **options: object) -> ProcessDriver:
    """An executor all of whose children are ready."""
    driver = start(count, argument, loader=LOADER, wait_policy=AlwaysWait(), **options)
    children = count + 1 if options.get("max_jobs") else count
    driver.until(lambda: len(driver.pids("fileq-child")) == children)
    driver.until(lambda: len(driver.executor.idle) == children)
    return driver


def submit(
    driver: ProcessDriver,
    path: Path,
    *raws: str,
    timeouts_s: Mapping[str, float] = {},
    names: Sequence[str] = NAMES,
) -> None:
    """One bundle of tasks `a`, `b`, …, which note their runs in this directory. `timeouts_s` is by `raw`."""
    tasks = [
        Task(key_of(name), raw.encode(), 0, os.fsencode(path), (), 1, timeouts_s.get(raw, 300.0))
        for name, raw in zip(names, raws, strict=False)
    ]
    driver.executor.submit(tasks)


def outcomes(driver: ProcessDriver, *names: str) -> list[TaskOutcome]:
    return [driver.outcome(name) for name in names or NAMES]


def at(position: int, raw: str, others: str = "pid") -> list[str]:
    """The tasks of a bundle: this one at the position, and others."""
    raws = [others] * SIZE
    raws[position] = raw
    return raws
