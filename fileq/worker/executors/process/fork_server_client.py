"""The worker's end of the fork server: starts it, asks for children, hears of them. Never blocks but in load()."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator

import msgspec

from fileq.config import format_duration
from fileq.core.errors import ConfigError
from fileq.worker.executors.process.messages import (
    LONGEST_PACKET,
    Ended,
    FromServer,
    Loaded,
    Spawn,
    cause_of_death,
    decode_from_server,
    encode,
)
from fileq.worker.executors.process.program import Program, python_command

LOAD_TIMEOUT_S = 120.0


class ForkServer:
    """One guard process with the server below it. When it is gone, is_gone, and another one must be made."""

    def __init__(self, program: Program) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        theirs.setblocking(True)
        self.is_loaded = False
        self.is_gone = False
        self.cause = ""  # of its end
        program_fd = os.memfd_create("fileq-program")
        try:
            os.write(program_fd, msgspec.msgpack.encode(program))
            fds = (theirs.fileno(), program_fd)
            self._guard = subprocess.Popen(
                python_command("fileq.worker.executors.process.fork_server", *fds, os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=_stderr(),
                stderr=_stderr(),
                pass_fds=fds,
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
            os.close(program_fd)

    def fileno(self) -> int:
        return self._control.fileno()

    def load(self) -> None:
        """Wait until the handlers are imported. Raises ConfigError, one line a problem, if they can't be."""
        deadline_s = time.monotonic() + LOAD_TIMEOUT_S
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while not self.is_gone:
            if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                raise ConfigError(f"importing the handlers took more than {format_duration(LOAD_TIMEOUT_S)}")
            for message, _ in self.receive():
                if isinstance(message, Loaded) and message.problems:
                    raise ConfigError(message.problems)
            if self.is_loaded:
                return
        raise ConfigError(f"the handlers can't be loaded: the process that imports them {self.cause}")

    def spawn(self, child: int, stream: int) -> bool:
        """Ask for a child with this end of a stream; False if that can't be said now."""
        try:
            socket.send_fds(self._control, [encode(Spawn(child))], [stream], socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def receive(self) -> Iterator[tuple[FromServer, int | None]]:
        """What has come in, with the descriptors that came along; they are the caller's to close."""
        while not self.is_gone:
            try:
                packet, fds, _, _ = socket.recv_fds(self._control, LONGEST_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except ConnectionError:
                packet, fds = b"", []
            if not packet:
                self.is_gone, self.is_loaded = True, False
                self.cause = self.cause or "died"
                return
            message = decode_from_server.decode(packet)
            if isinstance(message, Loaded):
                self.is_loaded = not message.problems
            elif isinstance(message, Ended):
                self.cause = f"was {cause}" if (cause := cause_of_death(message.code)).startswith("killed") else cause
            yield message, fds[0] if fds else None

    def hang_up(self) -> None:
        """Everything below it is killed, soon. May be called twice."""
        self.is_gone, self.is_loaded = True, False
        # Not only closed: a process that a handler forked from this one may hold a copy.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()

    def has_ended(self, patience_s: float = 0.0) -> bool:
        """Whether nothing is left of it: the guard ends last."""
        try:
            self._guard.wait(patience_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def _stderr() -> int:
    """What children print is not the worker's output: it goes where the logs go, if there is such a place."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
