"""Three settings of a process that only Linux has: end with the parent, adopt orphans, a name.

They are why a kill -9 of any process of a worker leaves no descendants: see fork_server.py.
"""

from __future__ import annotations

import ctypes
import os
import signal

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
