"""A real process, registered as a worker of this machine, that a test can stop and kill."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from types import TracebackType

from fileq.brokers.local_processes import ProcessId, this_process
from fileq.brokers.types import WorkerInfo
from tests.support.waiting import wait_until


class RegisteredProcess:
    """`info` is what the worker would register. kill() leaves a zombie, as a parent that does not wait; wait() removes
    it."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(command or ("sleep", "600"))
        own, pid = this_process(), self._process.pid
        self.id = ProcessId(own.boot_id, own.namespaces, pid, int(self._fields()[19]))
        place = {"boot_id": own.boot_id, "namespaces": own.namespaces, "pid_start": self.id.pid_start}
        self.info = WorkerInfo("host", pid, 0, "0", ("low",), **place)

    def _fields(self) -> list[str]:
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()

    def stop(self) -> None:
        self._signal(signal.SIGSTOP, "T")

    def kill(self) -> None:
        self._signal(signal.SIGKILL, "Z")

    def _signal(self, signal: signal.Signals, state: str) -> None:
        self._process.send_signal(signal)
        self.wait_for_state(state)

    def wait_for_state(self, state: str) -> None:
        wait_until(lambda: self._fields()[0] == state, 10, f"the process is in state {state}")

    def wait(self) -> None:
        self._process.wait()

    def __enter__(self) -> RegisteredProcess:
        return self

    def __exit__(self, type: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
