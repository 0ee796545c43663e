"""Finds, measures and kills the descendants of a process, by /proc.

A process that adopts orphans (adopt_orphans) keeps all descendants below itself, also those with a session of
their own: as long as one is left, the process has a child. So it can end all of them without a list: kill and reap the
children, and repeat with the grandchildren that thereby became children. What a kill -9 of the guard, the fork server
or a child leaves, one of the others kills: see fork_server.py.

Never kills by a remembered pid: only this process reaps its children, so the pid of a child can't be reused.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import time
from collections.abc import Collection

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.0005, 0.05
_ANY_CHILD = (os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def has_children() -> bool:
    """Whether this process has any child, running or zombie. One system call; reaps nothing."""
    try:
        os.waitid(*_ANY_CHILD)
    except ChildProcessError:
        return False
    return True


def children_of(pid: int) -> list[int]:
    """The children that any thread of this process made; none if the process has ended."""
    if not kernel_lists_children():
        return _children_by_parent().get(pid, [])
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, _content(f"/proc/{pid}/task/{thread}/children").split())
    return found


def descendants_of(pid: int) -> list[int]:
    found = children_of(pid)
    for child in found:  # the list grows during the loop
        found += children_of(child)
    return found


def memory_of(pid: int) -> int:
    """Bytes of resident memory (RSS) of a process and its descendants."""
    return sum(map(_rss, (pid, *descendants_of(pid))))


def end_children(spare: Collection[int] = (), *, timeout_s: float = float("inf")) -> bool:
    """Kill and reap the children of this process and all their descendants, except those in `spare`.

    False if one still lives after the timeout: it sleeps in the kernel, or belongs to another user."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        killed = kill_children(spare)
        reap_children()
        # /proc may miss a child while others end; has_children() never does.
        if not has_children() or (spare and not killed):
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def kill_children(spare: Collection[int] = ()) -> int:
    """Send SIGKILL to the children of this process, except those in `spare`; returns how many there were."""
    children = [pid for pid in children_of(os.getpid()) if pid not in spare]
    for pid in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(children)


def reap_children() -> dict[int, int]:
    """Reap the children that have ended. Returns each pid's exit code, or minus the signal that killed it."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (waited := os.waitpid(-1, os.WNOHANG))[0]:
            ended[waited[0]] = os.waitstatus_to_exitcode(waited[1])
    return ended


def _rss(pid: int) -> int:
    try:
        return int(_content(f"/proc/{pid}/statm").split()[1]) * PAGE_SIZE
    except (OSError, IndexError):
        return 0


@functools.cache
def kernel_lists_children() -> bool:
    """Whether the kernel was built with CONFIG_PROC_CHILDREN."""
    return os.path.exists("/proc/thread-self/children")


def _children_by_parent() -> dict[int, list[int]]:
    """The children of every process, found by reading the status of each process on the machine."""
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


# Three settings of a process that only Linux has: end with the parent, adopt orphans, a name.
#
# They are why a kill -9 of any process of a worker leaves no descendants: see fork_server.py.


_SET_PDEATHSIG, _SET_NAME, _SET_CHILD_SUBREAPER = 1, 15, 36


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when the thread that forked it ends; kills it at once if that has happened."""
    _prctl(_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Descendants that lose their parent become children of this process, whichever session they are in."""
    _prctl(_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def set_name(name: str) -> None:
    """Set the name that `ps` and `top` show; the kernel keeps 15 bytes of it."""
    _prctl(_SET_NAME, ctypes.c_char_p(name.encode()))


def _prctl(option: int, argument: ctypes.c_ulong | ctypes.c_char_p) -> None:
    zero = ctypes.c_ulong(0)
    if ctypes.CDLL(None, use_errno=True).prctl(ctypes.c_int(option), argument, zero, zero, zero) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")
