"""Runs the program on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable

from tests.support.program import environment
from tests.support.waiting import wait_until


class Terminal:
    """Runs a command with a terminal as its stderr, and with `is_stdout` as its stdout too, and reads the terminal."""

    def __init__(
        self, arguments: list[str], cwd: os.PathLike[str], columns: int = 200, *, is_stdout: bool = False
    ) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        env = environment(TERM="xterm-256color")
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            env.pop(name, None)
        out = theirs if is_stdout else subprocess.PIPE
        self.process = subprocess.Popen(
            arguments, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=theirs, text=True
        )
        os.close(theirs)
        self._shown = b""
        self._reader = threading.Thread(target=self._read, args=(ours,))
        self._reader.start()

    def _read(self, fd: int) -> None:
        while True:
            try:
                some = os.read(fd, 65536)
            except OSError:  # the program has closed the terminal
                break
            if not some:
                break
            self._shown += some
        os.close(fd)

    def shown(self) -> str:
        """Everything shown so far."""
        return self._shown.decode(errors="replace")

    def wait_shown(
        self, pattern: str, timeout_s: float = 60.0, *, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Waits until this was shown. `meanwhile` is called again and again: it keeps the program from going on."""

        def is_shown() -> bool:
            meanwhile()
            return re.search(pattern, self.shown()) is not None

        try:
            wait_until(is_shown, timeout_s)
        except TimeoutError:
            raise AssertionError(f"{pattern!r} was not shown:\n{self.shown()[-3000:]}") from None

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def finish(self, code: int = 0) -> tuple[str, str]:
        """Waits for the end; returns stdout and the text of the terminal. Asserts the exit code."""
        out, _ = self.process.communicate(timeout=60)
        self._reader.join()
        assert self.process.returncode == code, self.shown()
        return out, self.shown()

    def close(self) -> None:
        """Kills the program, also after a failed test."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=60)
        self._reader.join()
