"""Thread executors for tests, whose handlers do what the task says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fileq.core.events import Event
from fileq.core.outcome import Done, Failed, Ran, Task
from fileq.handlers.context import CancelFlag
from fileq.worker.executors.protocol import WaitPolicy
from fileq.worker.executors.thread import THREAD_WAKE_S, ThreadExecutor
from tests.support.executor_driver import ExecutorDriver
from tests.support.waiting import wait_until


class Handlers:
    """`hang` runs until the test sets `may_end`, `wait` until it is cancelled; other words are below."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun: list[str] = []

    def run(self, task: Task, cancelled: CancelFlag) -> Ran:
        self.begun.append(task.key.slot)
        match task.raw:
            case b"hang":
                self.may_end.wait()
            case b"wait":
                cancelled.wait()
            case b"fail when cancelled":
                cancelled.wait()
                return Failed("cancelled", "InterruptedError")
            case b"raise":
                raise SystemExit(3)
            case b"about as long":
                time.sleep(THREAD_WAKE_S)  # and a little more, as sleeps do: about as long as submit() waits
            case b"thread id":
                return Done(b"%d" % threading.get_ident())
            case b"thread":
                return Done(threading.current_thread().name.encode())
        return Done(b"cancelled" if cancelled.is_set() else b"")


class AlwaysWait(WaitPolicy):
    """submit() waits for every bundle, as if all before had been tiny."""

    def record(self, *, was_done_in_time: bool) -> None:
        pass


class NeverWait(WaitPolicy):
    def should_wait(self) -> bool:
        return False


class NotingPolicy(WaitPolicy):
    """The real policy, which also notes whether each wait was long enough."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def record(self, *, was_done_in_time: bool) -> None:
        self.waits.append(was_done_in_time)
        super().record(was_done_in_time=was_done_in_time)


class ThreadDriver(ExecutorDriver):
    def __init__(self, count: int, grace_s: float, wait_policy: WaitPolicy | None) -> None:
        self.handlers = Handlers()
        self.events: list[Event] = []
        self.closed: list[bool] = []
        super().__init__(
            ThreadExecutor(
                count,
                self.handlers.run,
                close_run=lambda: self.closed.append(True),
                emit=self.events.append,
                cancel_grace_s=grace_s,
                wait_policy=wait_policy,
            )
        )


Start = Callable[..., ThreadDriver]


def handler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "handler"]


@contextmanager
def thread_executors() -> Iterator[Start]:
    """A function that starts executors; they are closed at the end, and none of their threads may be left."""
    drivers: list[ThreadDriver] = []

    def start(count: int = 2, grace_s: float = 5.0, wait_policy: WaitPolicy | None = None) -> ThreadDriver:
        drivers.append(ThreadDriver(count, grace_s, wait_policy))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.handlers.may_end.set()
        driver.executor.close()
    wait_until(lambda: not handler_threads())
