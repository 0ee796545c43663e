"""The state of a child's process that handlers may change: noted before the first task, restored after every task.

What can't be restored is a reason to replace the child: the child ends itself with the exit status of the reason, after
it has sent the outcome. A task that the worker has sent by then was not read, so the worker gives it to another child.

A task that changes nothing costs a few system calls, about 3 µs. So what is cheap to set is set again without a look at
it, and what only some processes can change is checked only in those: the user in a child of root, resource limits where
the module `resource` is imported, threads where their number changed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub
import _thread
import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any, cast

from fileq.worker.executors.process.messages import DirtyExit

# Signals that users handle; their handlers are restored. Not SIGPROF and SIGVTALRM: nothing stops their timers, and
# with the default action restored these would end the child.
HANDLER_SIGNALS = (signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2)
LIMITS = ("AS", "CORE", "CPU", "DATA", "FSIZE", "NOFILE", "NPROC", "STACK")
THREAD_GRACE_S = 0.02  # for threads that are about to end
STANDARD_FDS = (0, 1, 2)


class ChildState:
    """What this process is now. `handlers` are signal handlers that restore_signals() sets besides those found now."""

    def __init__(self, handlers: Mapping[int, Any]) -> None:
        found = {int(number): _signal.getsignal(number) for number in HANDLER_SIGNALS}
        # None is a handler that a library in C has set: Python can't set it again.
        self._handlers = {number: handler for number, handler in found.items() if handler is not None} | dict(handlers)
        self._numbers, self._expected = list(self._handlers), list(self._handlers.values())
        self._mask = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._environ = os.environ
        self._data: dict[bytes, bytes] = cast(Any, os.environ)._data
        self._variables = dict(self._data)
        self._streams = (sys.stdin, sys.stdout, sys.stderr)
        self._saved = [(saved, fd) for fd in STANDARD_FDS if (saved := _duplicate(fd)) >= 0]
        self._user = (os.getresuid(), os.getresgid()) if os.geteuid() == 0 else None
        self._limits = _limits(resource, os.getpid()) if (resource := sys.modules.get("resource")) else None
        self._threads = frozenset(threading.enumerate())
        self._own_count = 0
        self._base_count = self._count = _thread._count()

    def restore_signals(self) -> None:
        """Stop the alarm and set the signal handlers and the mask of the main thread."""
        _signal.alarm(0)
        # Not signal.getsignal(): its conversion to an enum costs more than the rest of a turn.
        if list(map(_signal.getsignal, self._numbers)) != self._expected:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        _signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def restore_streams(self) -> bool:
        """Set sys.stdin, sys.stdout and sys.stderr; whether a handler had replaced one of them."""
        if (sys.stdin, sys.stdout, sys.stderr) == self._streams:
            return False
        sys.stdin, sys.stdout, sys.stderr = self._streams
        return True

    def restore(self) -> DirtyExit | None:
        """Restore everything else. Returns why the child must end, if that is impossible. Flush the output before."""
        try:
            os.fchdir(self._directory)
            os.umask(self._umask)
            for saved, fd in self._saved:
                os.dup2(saved, fd)
        except OSError:
            return DirtyExit.DESCRIPTORS
        # Compares the bytes behind os.environ: comparing the mapping itself would decode each variable.
        if os.environ is not self._environ or self._data != self._variables:
            self._restore_environment()
        if self._user is not None and (os.getresuid(), os.getresgid()) != self._user:
            return DirtyExit.USER
        if "resource" in sys.modules and self._are_limits_changed(sys.modules["resource"]):
            return DirtyExit.LIMITS
        if _thread._count() != self._count and self._has_left_threads():
            return DirtyExit.THREADS
        return None

    def _restore_environment(self) -> None:
        os.environ = self._environ  # noqa: B003  # a handler may have replaced the object; the variables follow below
        variables = os.environb
        is_zone_changed = variables.get(b"TZ") != self._variables.get(b"TZ")
        for name in variables.keys() - self._variables.keys():
            del variables[name]
        for name, value in self._variables.items():
            if variables.get(name) != value:
                variables[name] = value
        if is_zone_changed:
            time.tzset()

    def _are_limits_changed(self, resource: ModuleType) -> bool:
        """If `resource` was not imported before the first task, compares with the fork server, which has the same
        limits as the child had at its start."""
        try:
            if self._limits is None:
                self._limits = _limits(resource, os.getppid())
            return _limits(resource, 0) != self._limits
        except OSError:
            return True

    def _has_left_threads(self) -> bool:
        """Whether threads run that a task started, apart from those of the event loop of coroutines."""
        from fileq.handlers.event_loop import own_threads  # not above: it imports asyncio

        deadline_s = time.monotonic() + THREAD_GRACE_S
        while True:
            own = sum(thread.is_alive() and thread not in self._threads for thread in own_threads())
            count = _thread._count()
            if count <= self._base_count + own:
                self._count = count
                return False
            if time.monotonic() > deadline_s:
                return True
            time.sleep(0.001)


def _duplicate(fd: int) -> int:
    with contextlib.suppress(OSError):
        return os.dup(fd)
    return -1  # it was closed before the first task


def _limits(resource: Any, pid: int) -> list[tuple[int, int]]:
    return [resource.prlimit(pid, number) for number in _limit_numbers(resource)]


@functools.cache
def _limit_numbers(resource: Any) -> list[int]:
    return [getattr(resource, f"RLIMIT_{name}") for name in LIMITS]
