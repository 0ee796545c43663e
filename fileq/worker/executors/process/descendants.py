"""A process's children and theirs: found in /proc, measured, ended.

A process that adopts orphans (prctl.adopt_orphans) keeps all its descendants below itself, also those that made a
session of their own: as long as one is left, it has a child. So it can end them all without knowing them: kill the
children, reap them, and begin again with the children these leave it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Collection

PAGE = os.sysconf("SC_PAGE_SIZE")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.05


def has_children() -> bool:
    """Whether this process has any, running or not reaped: one system call, and nothing is reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children_of(pid: int) -> list[int]:
    """Its children, whichever of its threads made them; none when it is gone."""
    if not _kernel_lists_children():
        return _children_by_parent().get(pid, [])
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, _content(f"/proc/{pid}/task/{thread}/children").split())
    return found


def descendants_of(pid: int) -> list[int]:
    found = children_of(pid)
    for child in found:  # grows while it is walked
        found += children_of(child)
    return found


def memory_of(pid: int) -> int:
    """Bytes that it and its descendants hold in memory (RSS)."""
    return sum(map(_rss, (pid, *descendants_of(pid))))


def end_children(spare: Collection[int] = (), *, patience_s: float = float("inf")) -> bool:
    """Kill and reap the children of this process, and what they leave, until none but the spared are left.

    False when one outlived the patience: it sleeps in the kernel, or belongs to another user."""
    deadline_s = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        were_there = kill_children(spare)
        reap_children()
        # A list read while children end may miss one; only the kernel's "none" is certain.
        if not has_children() or (spare and not were_there):
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def kill_children(spare: Collection[int] = ()) -> int:
    """Kill those that are there now; how many there were. Only this process reaps them, so no pid is another's."""
    victims = [pid for pid in children_of(os.getpid()) if pid not in spare]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(victims)


def reap_children() -> dict[int, int]:
    """The children that have ended, each with its exit code: -9 for one that SIGKILL ended."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (waited := os.waitpid(-1, os.WNOHANG))[0]:
            ended[waited[0]] = os.waitstatus_to_exitcode(waited[1])
    return ended


def _rss(pid: int) -> int:
    try:
        return int(_content(f"/proc/{pid}/statm").split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


@functools.cache
def _kernel_lists_children() -> bool:
    """Whether it was built with CONFIG_PROC_CHILDREN."""
    return os.path.exists("/proc/thread-self/children")


def _children_by_parent() -> dict[int, list[int]]:
    """Everybody's children, by a look at every process there is."""
    found: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parent = int(_content(f"/proc/{name}/stat").rpartition(b")")[2].split()[1])
            found.setdefault(parent, []).append(int(name))
    return found


def _content(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while block := os.read(fd, 65536):
            content += block
        return content
    finally:
        os.close(fd)
