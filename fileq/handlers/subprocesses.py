"""Runs a program to its end: output read as it comes, tails kept, the whole group gone afterwards. Knows no job."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from fileq.handlers.context import CancelFlag

TERM_GRACE_S = 3.0  # between asking a cancelled program to stop and killing it; shorter than an executor's patience
_LOOK_EVERY_S = 0.05  # how soon a cancellation is seen
_CHUNK = 64 * 1024
_RUNNING: set[int] = set()  # for the last moment of this process, when threads no longer get to their ends
_SPAWNING = threading.Lock()
_SPAWN_PATIENCE_S = 5.0
_LAST_CHUNKS = 32  # read after the end, at most: somebody who left the group may hold the pipe and go on writing


class Ended(Struct, frozen=True):
    """How a program ended: its exit code, or minus the signal; None if somebody else took its status. `stopped` says
    why we ended it, if we did. Of its output only the ends are kept."""

    code: int | None
    stdout: Tail
    stderr: Tail
    stopped: Literal["", "cancelled", "timeout"] = ""


class Tail:
    """The last bytes of a stream."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._kept = bytearray()
        self.is_cut = False

    def add(self, chunk: bytes) -> None:
        self._kept += chunk
        if len(self._kept) > self._longest:
            del self._kept[: -self._longest]
            self.is_cut = True

    def text(self) -> str:
        kept = bytes(self._kept)
        if self.is_cut:
            kept = kept.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character that was cut in two
        return ("…" if self.is_cut else "") + kept.decode("utf-8", "replace")


def run_process(
    arguments: Sequence[bytes],
    environment: Mapping[bytes, bytes],
    *,
    cancelled: CancelFlag,
    timeout_s: float,
    tail: int,
) -> Ended:
    """Start it, wait for its end or bring it about. Raises OSError or ValueError if it can't be started."""
    ends_s = time.monotonic() + timeout_s
    with _SPAWNING:  # so that the last moment knows every program that was started before it
        spawned = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=True,
        )
        _RUNNING.add(spawned.pid)
    with spawned as process:
        try:
            with contextlib.closing(_Watch(process, tail)) as watch:
                return watch.until_end(cancelled, ends_s)
        finally:
            # Before Popen waits for it: as long as nobody has, its number can't be another group's.
            _signal_group(process.pid, signal.SIGKILL)
            _RUNNING.discard(process.pid)


@atexit.register
def _kill_running() -> None:
    """A worker that ends leaves no program behind, though its threads were left behind."""
    is_ours = _SPAWNING.acquire(timeout=_SPAWN_PATIENCE_S)
    for pid in tuple(_RUNNING):
        _signal_group(pid, signal.SIGKILL)
    if is_ours:
        _SPAWNING.release()


class _Watch:
    def __init__(self, process: subprocess.Popen[bytes], tail: int) -> None:
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
        with contextlib.suppress(OSError):  # an old kernel, a strict sandbox: then we look every now and then
            self._pidfd = os.pidfd_open(self._pid)
            self._selector.register(self._pidfd, selectors.EVENT_READ)

    def until_end(self, cancelled: CancelFlag, ends_s: float) -> Ended:
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
            for key, _ in self._selector.select(_LOOK_EVERY_S):
                self._read(key.fd)
        for fd in self._tails:
            for _ in range(_LAST_CHUNKS):
                if not self._read(fd):
                    break
        return Ended(exit_status[0], self._stdout, self._stderr, stopped)

    def close(self) -> None:
        self._selector.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)

    def _read(self, fd: int) -> bool:
        """Whether there was something to read; at its end the stream is not looked at any more."""
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
        return True

    def _exit_status(self) -> tuple[int | None] | None:
        """The exit code or minus the signal, once there is one; its process stays a zombie until Popen waits for it."""
        try:
            info = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return (None,)
        if info is None:
            return None
        return (info.si_status if info.si_code == os.CLD_EXITED else -info.si_status,)


def _signal_group(pid: int, number: int) -> None:
    # Gone, or run as somebody else: nothing that we could do about it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
