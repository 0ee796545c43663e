"""Programs that start without importing fileq again: most of the CPU time of a started program goes into its imports.

One process, the launcher, imports fileq once and never starts a thread. It forks a process for each program, which then
runs `python -m fileq` as a fresh interpreter would: in a session of its own, with its own arguments, environment,
working directory, standard streams and default signals, and with the umask and the limit of open files that the test
process has now. The launcher ends with the test process, however that ends; the programs do not. The first guard of a
worker is forked too: see warm_guards.py.

Not for tests of the start itself or of variables that Python or a library reads while it starts.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import msgpack

from tests.support.warm_guards import PRELOADED_BY_SERVERS, prepare_guard

REPOSITORY = Path(__file__).parents[2]
# What the roles and the commands import when they start, on each broker.
PRELOADED = (
    "fileq.brokers.redis",
    "fileq.brokers.sqlite",
    "fileq.brokers.sqlite.examine",
    "fileq.cli.parser",
    "fileq.cli.parser",
    "fileq.commands.built_in_jobs",
    "fileq.handlers.builtin",
    "fileq.runtime.once",
    "fileq.runtime.roles",
)
# Before a test changes it. The programs of the first test must not decide how all others start.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
MAX_REQUEST_BYTES = 200_000
NUMBER = struct.Struct("i")
DEFAULT_ACTIONS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


class WarmProcess:
    """A started program, with the attributes and methods of subprocess.Popen that tests use."""

    def __init__(self, pid: int, answers: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._answers = answers  # the launcher writes the exit code here
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        self._wait_ms(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._wait_ms(None if timeout is None else timeout * 1_000)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("fileq", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait_ms(self, timeout_ms: float | None) -> None:
        with self._lock:
            if self.returncode is not None:
                return
            readable = select.poll()
            readable.register(self._answers, select.POLLIN)
            if readable.poll(timeout_ms):
                self.returncode = _read_number(self._answers)
                os.close(self._answers)


class Launcher:
    """Starts the launcher, with this environment, at its first use."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], stdout: int, stderr: int
    ) -> WarmProcess:
        """Starts `python -m fileq` with these arguments and an empty stdin."""
        request = json.dumps(
            {
                "arguments": arguments,
                "cwd": str(cwd),
                "environment": dict(environment),
                "umask": _umask(),
                "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
            }
        ).encode()
        assert len(request) <= MAX_REQUEST_BYTES
        read_end, write_end = os.pipe()
        with open(os.devnull, "rb") as stdin:
            try:
                fds = [stdin.fileno(), stdout, stderr, write_end]
                socket.send_fds(self._connection(), [request], fds)
            finally:
                os.close(write_end)
        return WarmProcess(_read_number(read_end), read_end)

    def close(self) -> None:
        """Ends the launcher; programs that still run stay."""
        if self._requests is not None and self._process is not None:
            self._requests.close()
            self._process.wait(30)
            self._requests = None

    def _connection(self) -> socket.socket:
        with self._lock:
            if self._requests is None:
                self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._process = subprocess.Popen(
                        [sys.executable, "-W", "error", "-m", __name__, str(theirs.fileno())],
                        cwd=REPOSITORY,
                        env=dict(self._environment),
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        start_new_session=True,
                    )
            return self._requests


LAUNCHER = Launcher(ENVIRONMENT)


def _umask() -> int:
    """Reads it from the kernel: os.umask() would change it for the other threads of this process for a moment."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:")]
    return int(line.split()[1], 8)


def _read_number(fd: int) -> int:
    data = os.read(fd, NUMBER.size)
    if not data:
        raise RuntimeError("the launcher of programs has ended; its error is in the output of the test process")
    return int(NUMBER.unpack(data)[0])


# the launcher


def serve(requests: socket.socket) -> list[str]:
    """Forks a process for each request. Returns only in such a process: the arguments of its program."""
    running: dict[int, tuple[int, int]] = {}  # pidfd → (pid, where its exit code goes)
    ready = select.poll()
    ready.register(requests, select.POLLIN)
    while True:
        for fd, _ in ready.poll():
            if fd in running:
                ready.unregister(fd)
                _report_end(fd, *running.pop(fd))
                continue
            data, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
            if not data:
                os._exit(0)  # the test process has closed its end or is dead
            pid = os.fork()
            if pid == 0:
                requests.detach()
                os.setsid()
                # Told by the program itself: whoever knows its number may send a signal to its process group.
                os.write(fds[3], NUMBER.pack(os.getpid()))
                return _become(json.loads(data), fds[:3])
            for stream in fds[:3]:
                os.close(stream)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, fds[3]
            ready.register(pidfd, select.POLLIN)


def _report_end(pidfd: int, pid: int, answers: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        os.write(answers, NUMBER.pack(code))
    except BrokenPipeError:
        pass  # the test process is dead; the next request is its end of file
    finally:
        os.close(answers)
        os.close(pidfd)


def _become(request: dict[str, Any], streams: list[int]) -> list[str]:
    """Gives this process what a program gets from the process that starts it."""
    for number, action in DEFAULT_ACTIONS.items():
        signal.signal(number, action)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.umask(request["umask"])
    resource.setrlimit(resource.RLIMIT_NOFILE, request["open_files"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.path[0] = os.getcwd()  # as `python -m` does
    importlib.invalidate_caches()
    arguments: list[str] = request["arguments"]
    return arguments


def preload() -> None:
    """Imports what programs need, and fills the caches of what never changes: the commands and the settings."""
    for name in (*PRELOADED, *PRELOADED_BY_SERVERS):
        importlib.import_module(name)
    from fileq.cli.parser import all_commands
    from fileq.config import Config, config_from
    from fileq.runtime import handlers_program as program

    all_commands()
    config = config_from({"handlers": [{"match": "*", "use": "module:function"}]})
    msgpack.decode(program.handlers_program(config, app_dir="").argument, type=tuple[Config, str])


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    preload()
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    sys.argv[1:] = serve(requests)
    prepare_guard(sys.argv[1:])
    runpy.run_module("fileq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
