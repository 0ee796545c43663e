"""Process executors for tests, with real children. Afterwards no process that began in the test may be left.

Also an epoll under the test's control: it can hide one descriptor, or report events in reverse order.
"""

from __future__ import annotations

import os
import select
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fileq.core.events import Event
from fileq.worker.executors.process.executor import ProcessExecutor
from fileq.worker.executors.process.messages import Program
from fileq.worker.executors.protocol import WaitPolicy
from tests.support.executor_driver import ExecutorDriver
from tests.support.executor_tasks import LOADER

MARK = "FILEQ_TEST_MARK"


def marked(mark: str) -> dict[int, str]:
    """The processes that were started with this mark in their environment, each with its name."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
            if f"{MARK}={mark}".encode() in environment.split(b"\0"):
                found[int(name)] = Path(f"/proc/{name}/comm").read_text().strip()
        except OSError:
            continue
    return found


class ProcessDriver(ExecutorDriver):
    """A process executor with its events, and its processes found by `mark`."""

    executor: ProcessExecutor

    def __init__(self, executor: ProcessExecutor, mark: str, events: list[Event]) -> None:
        super().__init__(executor)
        self.mark = mark
        self.events = events

    def pids(self, name: str) -> list[int]:
        """The processes of this executor with this name."""
        return [pid for pid, comm in marked(self.mark).items() if comm == name]

    def server(self) -> int:
        """The fork server: the child of the guard. A child has the server's name until it sets its own."""
        (guard,) = self.pids("fileq-guard")
        return int(Path(f"/proc/{guard}/task/{guard}/children").read_text())

    def emitted(self, event: str) -> list[Event]:
        return [found for found in self.events if found.name == event]


Start = Callable[..., ProcessDriver]


@contextmanager
def process_executors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """A function that starts executors; they are closed at the end."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    executors: list[ProcessExecutor] = []

    def start(
        count: int = 2,
        argument: str = "",
        max_memory: int | None = None,
        grace_s: float = 5.0,
        *,
        loader: str = LOADER,
        max_jobs: int = 0,
        captures_output: bool = False,
        wait_policy: WaitPolicy | None = None,
    ) -> ProcessDriver:
        events: list[Event] = []
        executor = ProcessExecutor(
            count,
            Program(loader, argument.encode()),
            max_memory=max_memory,
            max_jobs=max_jobs,
            captures_output=captures_output,
            emit=events.append,
            cancel_grace_s=grace_s,
            wait_policy=wait_policy,
        )
        executors.append(executor)
        return ProcessDriver(executor, mark, events)

    yield start
    for executor in executors:
        executor.close()
    assert marked(mark) == {}


class ControlledEpoll:
    """An epoll that can hide events of the fork server, which the executor registers first."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.registered: list[int] = []
        self.hides_server = False
        self.reports_latest_first = False

    def register(self, fd: int, events: int) -> None:
        self.registered.append(fd)
        self._epoll.register(fd, events)

    def unregister(self, fd: int) -> None:
        self.registered.remove(fd)
        self._epoll.unregister(fd)

    def poll(self, timeout_s: float, max_events: int) -> list[tuple[int, int]]:
        found = self._epoll.poll(timeout_s, max_events)
        if self.hides_server:
            found = [(fd, event) for fd, event in found if fd != self.registered[0]]
        return found[::-1] if self.reports_latest_first else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def control_epoll(monkeypatch: pytest.MonkeyPatch) -> ControlledEpoll:
    """The epoll that the next executor will use."""
    epoll = ControlledEpoll()
    monkeypatch.setattr(select, "epoll", lambda: epoll)
    return epoll
