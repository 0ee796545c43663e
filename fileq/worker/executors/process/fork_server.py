"""The program that makes the worker's children: imports the handlers once and forks from a process without threads.

There are two processes below the worker, so that a kill -9 of any one process leaves nothing running:

    worker ── guard ── server ── child ── processes that the handler starts
                              └─ child …

1. The guard only waits. When the server or the worker ends, or the worker closes the connection, it kills everything
   below it and ends.
2. The server imports the handlers, forks children, and reports to the worker which child ended and how. When the guard
   is killed, the server kills everything below itself.
3. A child is killed by the kernel when the server ends (PDEATHSIG).
4. Processes that a child leaves become children of the server, which kills them. Guard, server and children all adopt
   orphans, so a process does not escape by a session of its own.

Never forks while another thread runs: the fork could copy a lock that the thread holds. If importing the handlers
started threads, each child starts in a fresh interpreter instead.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from fileq.core.errors import ConfigError
from fileq.worker.executors.process import descendants, messages
from fileq.worker.executors.process.child import (
    Child,
    become_child,
    do_nothing,
    flush_output,
    neutralize_signals,
    read_program,
    set_line_buffering,
)
from fileq.worker.executors.process.output_pipe import OutputPipe
from fileq.worker.executors.protocol import Run


def main() -> NoReturn:
    """The guard. Its arguments: the control socket, a file that holds the program, the worker's pid."""
    control_fd, program_fd, worker_pid = map(int, sys.argv[1:])
    sys.argv[1:] = []
    for fd in (control_fd, program_fd):
        os.set_inheritable(fd, False)
    neutralize_signals()
    descendants.adopt_orphans()
    descendants.set_name("fileq-guard")
    control = socket.socket(fileno=control_fd)
    guard_pid = os.getpid()
    server_pid = os.fork()
    if server_pid == 0:
        _be_server(control, program_fd, guard_pid)
    worker, server = os.pidfd_open(os.getppid()), os.pidfd_open(server_pid)
    poll = select.poll()
    poll.register(control, 0)  # no data, only that the worker closed the connection
    for fd in (worker, server):
        poll.register(fd, select.POLLIN)
    if os.getppid() == worker_pid:
        poll.poll()
    with contextlib.suppress(OSError):
        waited, status = os.waitpid(server_pid, os.WNOHANG)
        if waited:
            ended = messages.ForkServerEnded(os.waitstatus_to_exitcode(status))
            control.send(messages.encode(ended), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    control.close()
    descendants.end_children()
    os._exit(0)  # the interpreter has nothing to clean up


def _be_server(control: socket.socket, program_fd: int, guard_pid: int) -> NoReturn:
    try:
        descendants.set_name("fileq-server")
        descendants.adopt_orphans()
        set_line_buffering()
        ForkServer(control, program_fd, guard_pid).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class ForkServer:
    """The server process. serve() never returns: it ends the process."""

    def __init__(self, control: socket.socket, program_fd: int, guard_pid: int) -> None:
        self._control = control
        self._program_fd = program_fd
        self._guard = os.pidfd_open(guard_pid)
        self._guard_pid = guard_pid
        self._children: dict[int, int] = {}  # pid → the worker's number for the child
        self._spared: frozenset[int] = frozenset()  # processes that importing the handlers started
        self._captures_output = True
        self._wake, self._wake_end = os.pipe()
        for fd in (self._wake, self._wake_end):
            os.set_blocking(fd, False)

    def serve(self) -> NoReturn:
        program = read_program(self._program_fd)
        self._captures_output = not program.prints_directly
        run = self._load(program)
        # Again, and after the import: the handlers' modules may have set signal handlers of their own.
        neutralize_signals()
        signal.signal(signal.SIGCHLD, do_nothing)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        poll = select.poll()
        for fd in (self._control.fileno(), self._guard, self._wake):
            poll.register(fd, select.POLLIN)
        while os.getppid() == self._guard_pid:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake in ready:
                self._reap()
            if self._control.fileno() in ready:
                self._receive(run)
        descendants.end_children()
        os._exit(0)

    def _load(self, program: messages.Program) -> Run:
        try:
            run = program.load()
        except ConfigError as error:
            self._send(messages.HandlersLoaded(tuple(line[:1000] for line in error.problems[:50])))
            os._exit(1)
        self._spared = frozenset(descendants.children_of(os.getpid()))
        gc.collect()
        gc.freeze()  # else the collector of each child would write to, and so copy, the memory of what was imported
        self._send(messages.HandlersLoaded())
        return run

    def _reap(self) -> None:
        """Report the children that have ended, and kill the processes they left, which are this process's children."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        ended = descendants.reap_children()
        exits = [messages.Exited(self._children.pop(pid), code) for pid, code in ended.items() if pid in self._children]
        descendants.kill_children(self._known())
        for exited in exits:
            self._send(exited)

    def _known(self) -> set[int]:
        return {*self._children, *self._spared}

    def _receive(self, run: Run) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(
                self._control, messages.MAX_PACKET_BYTES, messages.MAX_PACKET_FDS, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:  # the worker closed it before it had read all reports
            message = b""
        if not message:
            os._exit(0)  # the worker closed the connection: PDEATHSIG kills the children, the guard all others
        request = messages.decode_to_server.decode(message)
        if isinstance(request, messages.Ping):
            self._send(messages.Pong())
        else:
            self._spawn(request, fds, run)

    def _spawn(self, spawn: messages.Spawn, fds: Sequence[int], run: Run) -> None:
        child = spawn.child
        try:
            pid = (
                self._fork(fds, spawn.secret, run) if _has_one_thread() else self._start_interpreter(fds, spawn.secret)
            )
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            self._send(messages.NotSpawned(child, messages.error_line(error)))
            descendants.kill_children(self._known())  # also the child, if only pidfd_open() failed
        else:
            self._children[pid] = child
            self._send(messages.Spawned(child, pid), pidfd)
            os.close(pidfd)
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(self, fds: Sequence[int], secret: bytes, run: Run) -> int:
        flush_output()
        server_pid = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become_child(server_pid)
            self._control.close()
            for fd in (self._guard, self._wake, self._wake_end, self._program_fd):
                os.close(fd)
            stream, tokens, *output = fds
            pipe = OutputPipe(output[0], secret, captures=self._captures_output) if output else None
            Child(stream, tokens, run, output=pipe).serve()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _start_interpreter(self, fds: Sequence[int], secret: bytes) -> int:
        stream, tokens, *output = fds
        given = (stream, tokens, self._program_fd, os.getpid())
        more = (output[0], secret.hex()) if output else ()
        command = messages.python_command("fileq.worker.executors.process.child", *given, *more)
        for fd in (*fds, self._program_fd):
            os.set_inheritable(fd, True)
        try:
            return os.posix_spawn(command[0], command, os.environ)
        finally:
            os.set_inheritable(self._program_fd, False)

    def _send(self, message: messages.FromServer, *fds: int) -> None:
        try:
            socket.send_fds(self._control, [messages.encode(message)], fds)
        except OSError:
            os._exit(0)


def _has_one_thread() -> bool:
    return len(os.listdir("/proc/self/task")) == 1
