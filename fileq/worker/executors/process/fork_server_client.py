"""The worker's side of the fork server: starts it, requests children, receives reports about them.

Never blocks, except in load() and in has_ended() with a timeout. When the worker is killed with kill -9, the kernel
closes its end of the control socket, and the guard kills every process below it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping

import msgspec

from fileq.core.errors import ConfigError
from fileq.core.units import format_duration
from fileq.files.descriptor_limit import restore_limit_of
from fileq.worker.executors.process.child_output import ChildOutput
from fileq.worker.executors.process.messages import (
    MAX_PACKET_BYTES,
    ForkServerEnded,
    FromServer,
    HandlersLoaded,
    Ping,
    Spawn,
    cause_of_death,
    decode_from_server,
    encode,
)
from fileq.worker.executors.process.program import Program, python_command

LOAD_TIMEOUT_S = 120.0


class ForkServerClient:
    """One guard process with the fork server below it. Once `is_gone`, it is of no use: make another one."""

    def __init__(self, program: Program) -> None:
        self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        server_end.setblocking(True)
        self.is_loaded = False
        self.is_gone = False
        self.cause = ""  # why it has ended
        program_fd = os.memfd_create("fileq-program")
        try:
            os.write(program_fd, msgspec.msgpack.encode(program))
            environment = {name: value for name, value in os.environ.items() if name not in program.hidden_variables}
            self._guard = start_guard(server_end.fileno(), program_fd, environment)
        except BaseException:
            self._control.close()
            raise
        finally:
            server_end.close()
            os.close(program_fd)

    def fileno(self) -> int:
        return self._control.fileno()

    def load(self) -> None:
        """Wait until the handlers are imported. If they can't be, raises ConfigError with one line for each problem."""
        deadline_s = time.monotonic() + LOAD_TIMEOUT_S
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while not self.is_gone:
            if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                raise ConfigError(f"importing the handlers took more than {format_duration(LOAD_TIMEOUT_S)}")
            for message, _ in self.receive():
                if isinstance(message, HandlersLoaded) and message.problems:
                    raise ConfigError(message.problems)
            if self.is_loaded:
                return
        raise ConfigError(f"the handlers can't be loaded: the process that imports them {self.cause}")

    def spawn(self, child: int, stream: int, tokens: int, output: ChildOutput | None = None) -> bool:
        """Request a child that gets these ends of its stream and its tokens, and the other end of this output pipe;
        False if the request can't be sent now."""
        fds, secret = [stream, tokens], b""
        if output is not None:
            fds, secret = [*fds, output.child_end], output.secret
        try:
            socket.send_fds(self._control, [encode(Spawn(child, secret))], fds, socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def ping(self) -> None:
        """Ask for a Pong. A message that can't be sent is not answered either, which is what the caller looks for."""
        with contextlib.suppress(OSError):
            self._control.send(encode(Ping()), socket.MSG_NOSIGNAL)

    def give_up(self, cause: str) -> None:
        """It does not answer any more: it is gone for the worker, and hang_up() ends it."""
        self.is_gone, self.is_loaded = True, False
        self.cause = cause
        # The guard kills the server, frozen or not. It may be stopped itself.
        self._guard.send_signal(signal.SIGCONT)

    def receive(self) -> Iterator[tuple[FromServer, int | None]]:
        """The messages that have arrived, each with its descriptor, which the caller must close."""
        while not self.is_gone:
            try:
                packet, fds, _, _ = socket.recv_fds(self._control, MAX_PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except ConnectionError:
                packet, fds = b"", []
            if not packet:
                self.is_gone, self.is_loaded = True, False
                self.cause = self.cause or "died"
                return
            message = decode_from_server.decode(packet)
            if isinstance(message, HandlersLoaded):
                self.is_loaded = not message.problems
            elif isinstance(message, ForkServerEnded):
                self.cause = f"was {cause}" if (cause := cause_of_death(message.code)).startswith("killed") else cause
            yield message, fds[0] if fds else None

    def hang_up(self) -> None:
        """Close the connection: the guard then kills everything below it. Does not wait. May be called twice."""
        self.is_gone, self.is_loaded = True, False
        # close() alone is not enough: a process that a handler forked from the worker may hold a copy of the socket.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether all of its processes have ended. The guard ends last."""
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def start_guard(control_fd: int, program_fd: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the guard in a fresh interpreter and a session of its own, with these descriptors and variables."""
    fds = (control_fd, program_fd)
    guard = subprocess.Popen(
        python_command("fileq.worker.executors.process.fork_server", *fds, os.getpid()),
        stdin=subprocess.DEVNULL,
        stdout=_stderr(),
        stderr=_stderr(),
        pass_fds=fds,
        env=environment,
        start_new_session=True,
    )
    restore_limit_of(guard.pid)  # before it has started Python and forked
    return guard


def _stderr() -> int:
    """Where handlers print: to the worker's stderr, as the logs do, or to nowhere if that is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
