"""Which registered processes of this machine are gone. Only reads; nothing outside this machine is ever judged.

The heartbeat of a worker that was killed lasts for up to `worker.heartbeat_ttl`. A process on the same machine does not
have to wait for that: the kernel knows at once that a process has ended. So each worker registers what identifies it to
the kernel, and reapers and commands of the same machine ask the kernel about it.

A live process is never called gone:
- The boot id and the namespaces must be those of the caller. A pid names one process only within one pid namespace, and
  its start time is the same only within one time namespace. The inode of a namespace may be used again after its last
  process has ended; then all its processes are gone.
- Gone means that the kernel knows no such pid (ESRCH), that the process is a zombie, or that its start time, read
  successfully, is another one: the pid was used again. Anything else, such as a /proc that hides processes of other
  users (hidepid), or a process that is stopped or in a frozen cgroup, counts as alive, and the lease decides.
"""

from __future__ import annotations

import functools
import os

from msgspec import Struct

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_MAX_PID = 2**31 - 1


class ProcessId(Struct, frozen=True):
    """Identifies a process among all that ever run on all machines. With an empty `boot_id` it identifies none."""

    boot_id: str = ""
    namespaces: str = ""  # the inodes of its pid namespace and its time namespace
    pid: int = 0
    pid_start: int = 0  # when it started, in clock ticks since the boot: field 22 of /proc/PID/stat

    def is_beside(self, other: ProcessId) -> bool:
        """Whether both run on one machine, in the same namespaces."""
        return bool(self.boot_id) and (self.boot_id, self.namespaces) == (other.boot_id, other.namespaces)


NO_PROCESS = ProcessId()


def this_process() -> ProcessId:
    """The caller; NO_PROCESS if this system does not tell enough to identify it."""
    return _identify(os.getpid())


def this_holder() -> str:
    """A text that names the caller as the holder of a lease; see process_of()."""
    return _holder(os.getpid())


@functools.lru_cache(maxsize=1)
def _holder(pid: int) -> str:
    own = this_process()
    return f"{os.urandom(4).hex()} {own.boot_id} {own.namespaces} {own.pid} {own.pid_start}"


def process_of(holder: str) -> ProcessId:
    """The process that this text of this_holder() names; NO_PROCESS if it names none."""
    match holder.split(" "):
        case [_, boot_id, namespaces, pid, pid_start] if boot_id and pid.isdecimal() and pid_start.isdecimal():
            return ProcessId(boot_id, namespaces, int(pid), int(pid_start))
    return NO_PROCESS


@functools.lru_cache(maxsize=1)
def _identify(pid: int) -> ProcessId:
    try:
        with open(BOOT_ID_FILE) as file:
            boot_id = file.read().strip()
        with open("/proc/self/status") as file:
            pids = next(line.split()[1:] for line in file if line.startswith("NSpid:"))
        namespaces = f"{os.stat('/proc/self/ns/pid').st_ino}-{os.stat('/proc/self/ns/time').st_ino}"
    except (OSError, StopIteration, ValueError):
        return NO_PROCESS
    status = _status(pid)
    # If /proc shows the pids of another namespace, as that of a parent, it says nothing about the pids known here.
    if pids != [str(pid)] or status is None:
        return NO_PROCESS
    return ProcessId(boot_id, namespaces, pid, status.start)


class _Status(Struct, frozen=True):
    start: int
    is_zombie: bool


def _status(pid: int) -> _Status | None:
    """What /proc says about a process; None if it says nothing."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in brackets, may contain blanks and brackets.
            fields = file.read().rpartition(b")")[2].split()
        # A first thread that has ended is a zombie too; the process lives while it has others.
        return _Status(int(fields[19]), fields[0] in (b"Z", b"X") and int(fields[17]) <= 1)
    except (OSError, IndexError, ValueError):
        return None


def _exists(process: ProcessId) -> bool:
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it exists, and belongs to another user
    status = _status(process.pid)
    return status is None or (status.start == process.pid_start and not status.is_zombie)


class Neighbours:
    """Other processes of this machine, each looked up once."""

    def __init__(self) -> None:
        self._is_gone: dict[ProcessId, bool] = {}

    def is_gone(self, process: ProcessId) -> bool:
        """Whether this process of this machine has ended. False for processes of other machines."""
        known = self._is_gone.get(process)
        if known is not None:
            return known
        here = this_process()
        if not process.is_beside(here):
            return False
        if process == here or not 0 < process.pid <= _MAX_PID:
            return False
        is_gone = self._is_gone[process] = not _exists(process)
        return is_gone
