"""The guard and the fork server of a worker that the launcher of warm_programs.py forked: they import nothing again.

A guard must be a child of its worker, and must not have what the worker has loaded. So the worker forks a process
before it does anything else. That process waits, in a session of its own. When the worker starts its first guard, the
process gets what a fresh interpreter would get: descriptors, variables and sys.path. Then it runs the guard, which
forks the server. If the worker needs no guard, the process ends with it, however it ends.

All further guards of a worker, and all guards of programs and executors that the launcher did not fork, start in a
fresh interpreter. So do the guards whose tests look at what only the start of a program decides, as /proc/PID/environ.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

# What a guard and a fork server import before they import the handlers.
PRELOADED_BY_SERVERS = (
    "fileq.handlers.routes",
    "fileq.handlers.run",
    "fileq.observe.logs",
    "fileq.runtime.handlers_program",
    "fileq.worker.executors.process.fork_server",
)
ROLES = ("all", "start", "try", "worker")  # the first word of the programs that start a guard
MAX_REQUEST_BYTES = 200_000


class WarmGuard:
    """A started guard, with the methods of subprocess.Popen that the worker uses."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._has_ended = False

    def wait(self, timeout: float) -> None:
        if self._has_ended:
            return
        readable = select.poll()
        readable.register(self._pidfd, select.POLLIN)
        if not readable.poll(timeout * 1_000):
            raise subprocess.TimeoutExpired("the guard", timeout)
        os.waitpid(self._pid, 0)
        os.close(self._pidfd)
        self._has_ended = True

    def send_signal(self, number: int) -> None:
        if not self._has_ended:
            signal.pidfd_send_signal(self._pidfd, number)


def prepare_guard(arguments: Sequence[str]) -> None:
    """Forks the process that becomes the first guard of this program, if it is one that starts a guard."""
    if arguments[:1] and arguments[0] in ROLES:
        requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become_guard(theirs)
        theirs.close()
        atexit.register(requests.close)  # a program that ends before its first guard must not warn about it
        _use_for_first_guard(pid, requests)


def _use_for_first_guard(pid: int, requests: socket.socket) -> None:
    from fileq.worker.executors.process import child_pool as client

    start_cold = client.start_guard

    def start_guard(control_fd: int, program_fd: int, environment: Mapping[str, str]) -> Any:
        client.start_guard = start_cold
        request = json.dumps({"environment": dict(environment), "path": sys.path}).encode()
        assert len(request) <= MAX_REQUEST_BYTES
        with requests, open(os.devnull, "wb") as nowhere:
            stderr = nowhere.fileno() if client._stderr() == subprocess.DEVNULL else 2
            socket.send_fds(requests, [request], [control_fd, program_fd, stderr])
        return WarmGuard(pid)

    client.start_guard = start_guard


def _become_guard(requests: socket.socket) -> NoReturn:
    try:
        worker_pid = os.getppid()
        os.setsid()
        data, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 3)
        requests.close()
        if not data:
            os._exit(0)
        _run_guard(json.loads(data), *fds, worker_pid)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _run_guard(request: dict[str, Any], control_fd: int, program_fd: int, stderr: int, worker_pid: int) -> NoReturn:
    """Does what `python -c` does with the command of start_guard()."""
    for target in (1, 2):
        os.dup2(stderr, target)
    os.close(stderr)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    importlib.invalidate_caches()
    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv[:] = ["-c", str(control_fd), str(program_fd), str(worker_pid)]

    from fileq.worker.executors.process.fork_server import main

    main()
