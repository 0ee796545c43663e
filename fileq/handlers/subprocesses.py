"""Runs a program in a process group of its own: reads its output, keeps the last bytes, kills the group at the end.

Knows nothing of jobs. When this process exits by itself, an atexit hook kills the programs that still run. A kill -9
leaves them running. If this process is a child of the fork server, the fork server kills them; commands therefore run
in children unless their route says `isolation: thread`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from fileq.files.descriptor_limit import restore_limit_of
from fileq.handlers.context import CancelFlag
from fileq.handlers.tail import Tail

TERM_GRACE_S = 3.0  # from SIGTERM to SIGKILL of a cancelled program; shorter than CANCEL_GRACE_S of the executors
_POLL_EVERY_S = 0.05  # the longest time until a cancellation is seen
_CHUNK = 64 * 1024
_RUNNING: set[int] = set()  # pids that the atexit hook kills: daemon threads do not reach their `finally` then
_SPAWNING = threading.Lock()
_SPAWN_TIMEOUT_S = 5.0
_MAX_LAST_CHUNKS = 32  # read after the exit: a process outside the group may still hold the pipe and write to it


class ProcessResult(Struct, frozen=True):
    """How a program ended. `code` is its exit code, or minus the number of the signal that killed it; None if other
    code in this process has reaped it. `stopped` is the reason why run_process() stopped it, if it did."""

    code: int | None
    stdout: Tail
    stderr: Tail
    stopped: Literal["", "cancelled", "timeout"] = ""


def run_process(
    arguments: Sequence[bytes],
    environment: Mapping[bytes, bytes],
    *,
    inherited: Collection[int] = (),
    cancelled: CancelFlag,
    timeout_s: float,
    tail: int,
    on_output: Callable[[bytes], None] | None = None,
) -> ProcessResult:
    """Start a program and wait for its end; stop it on cancellation or timeout. `tail` bytes of each stream are kept.
    `on_output` gets what it prints, while it runs.

    The program inherits the descriptors `inherited`, under their numbers, and no others.

    Raises OSError or ValueError if it can't be started."""
    ends_s = time.monotonic() + timeout_s
    with _SPAWNING:  # the atexit hook must find every program that was started before it
        spawned = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            pass_fds=inherited,
            start_new_session=True,
        )
        _RUNNING.add(spawned.pid)
    restore_limit_of(spawned.pid)
    with spawned as process:
        try:
            with contextlib.closing(_Watch(process, tail, on_output)) as watch:
                return watch.until_end(cancelled, ends_s)
        finally:
            # Before Popen reaps it: until then the kernel gives its number to no other group.
            _signal_group(process.pid, signal.SIGKILL)
            _RUNNING.discard(process.pid)


@atexit.register
def _kill_running() -> None:
    """A process that exits leaves no program running, although its daemon threads do not finish."""
    is_locked = _SPAWNING.acquire(timeout=_SPAWN_TIMEOUT_S)
    for pid in tuple(_RUNNING):
        _signal_group(pid, signal.SIGKILL)
    if is_locked:
        _SPAWNING.release()


class _Watch:
    def __init__(self, process: subprocess.Popen[bytes], tail: int, on_output: Callable[[bytes], None] | None) -> None:
        self._on_output = on_output
        assert process.stdout is not None
        assert process.stderr is not None
        self._pid = process.pid
        self._stdout, self._stderr = Tail(tail), Tail(tail)
        self._tails = {process.stdout.fileno(): self._stdout, process.stderr.fileno(): self._stderr}
        self._selector = selectors.DefaultSelector()
        for fd in self._tails:
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)
        self._pidfd = -1
        with contextlib.suppress(OSError):  # an old kernel or a strict sandbox: polling finds the exit
            self._pidfd = os.pidfd_open(self._pid)
            self._selector.register(self._pidfd, selectors.EVENT_READ)

    def until_end(self, cancelled: CancelFlag, ends_s: float) -> ProcessResult:
        stopped: Literal["", "cancelled", "timeout"] = ""
        kill_s = ends_s
        while not (exit_status := self._exit_status()):
            now_s = time.monotonic()
            if now_s >= kill_s:
                stopped = stopped or "timeout"
                _signal_group(self._pid, signal.SIGKILL)
            elif not stopped and cancelled.is_set():
                stopped = "cancelled"
                kill_s = min(ends_s, now_s + TERM_GRACE_S)
                _signal_group(self._pid, signal.SIGTERM)
            for key, _ in self._selector.select(_POLL_EVERY_S):
                self._read(key.fd)
        for fd in self._tails:
            for _ in range(_MAX_LAST_CHUNKS):
                if not self._read(fd):
                    break
        return ProcessResult(exit_status[0], self._stdout, self._stderr, stopped)

    def close(self) -> None:
        self._selector.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)

    def _read(self, fd: int) -> bool:
        """Read once; False if there was nothing to read. A stream at its end is no longer watched."""
        if fd not in self._tails:
            return False
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)
            return False
        self._tails[fd].add(chunk)
        if self._on_output is not None:
            self._on_output(chunk)
        return True

    def _exit_status(self) -> tuple[int | None] | None:
        """The code of ProcessResult in a tuple once the program has exited, else None. Does not reap: Popen does."""
        try:
            info = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return (None,)
        if info is None:
            return None
        return (info.si_status if info.si_code == os.CLD_EXITED else -info.si_status,)


def _signal_group(pid: int, number: int) -> None:
    # The group has ended, or it belongs to another user and can't be signalled.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
