"""Stops servers together with the test process that started them, also after kill -9.

A process in its own session reads `+ PID DIRECTORY` and `- PID` from a pipe. The pipe closes when the test process
ends. The watchdog then kills every server that is still listed and removes its directory. Unlike PDEATHSIG, this does
not depend on the thread that started the server.
"""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading


class Watchdog:
    """The writing end of the pipe; the watchdog process starts with the first server."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()  # scenarios of a test file start servers at the same time
        atexit.register(self.close)
        # A forked child must not keep the pipe open after its parent has died.
        os.register_at_fork(after_in_child=self._close_in_child)

    def add(self, pid: int, directory: str) -> None:
        self._write(f"+ {pid} {directory}\n")

    def remove(self, pid: int) -> None:
        self._write(f"- {pid}\n")

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _write(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, start_new_session=True, text=True
                )
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _close_in_child(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.returncode = 0  # only the parent waits for it


def main() -> None:
    alive: dict[int, str] = {}
    for line in sys.stdin:
        sign, pid, *directory = line.rstrip("\n").split(" ", 2)
        if sign == "+":
            alive[int(pid)] = directory[0]
        else:
            alive.pop(int(pid), None)
    for pid, directory in alive.items():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
else:
    watchdog = Watchdog()
