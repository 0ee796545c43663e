"""Takes servers down with the test process that started them, also when it is killed with -9.

A process of its own session reads `+ PID DIRECTORY` and `- PID` on a pipe. The pipe closes when the test process is
gone, however it went; whatever is still listed is then killed and its directory removed. Unlike PDEATHSIG this does
not tie a server to the thread that started it.
"""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys


class Watchdog:
    """The test process's end of the pipe; the process behind it starts with the first server."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.close)
        # A forked child must not keep the pipe open after its parent has died.
        os.register_at_fork(after_in_child=self._forget)

    def add(self, pid: int, directory: str) -> None:
        self._tell(f"+ {pid} {directory}\n")

    def remove(self, pid: int) -> None:
        self._tell(f"- {pid}\n")

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _tell(self, line: str) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, start_new_session=True, text=True
            )
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.returncode = 0  # not ours to wait for


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
