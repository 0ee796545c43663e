"""The fork server: imports the handlers once and forks the worker's children from a process without threads.

Two processes below the worker, so that killing any one of all leaves nothing running:

    worker ── guard ── server ── child ── whatever the handler starts
                              └─ child …

1. The guard does nothing but wait. When the server ends, or the worker (also by kill -9), or the worker hangs up, it
   kills everything below it and ends.
2. The server imports, forks, and tells the worker who ended and how. When the guard is killed, it does its work.
3. A child ends with the server by PDEATHSIG.
4. What a child leaves behind becomes the server's child and is killed there. Guard, server and children all adopt
   orphans, so a session of its own does not help a process to escape.

If importing started threads, a fork could copy a lock that one of them holds; children are then spawned afresh.
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
from typing import NoReturn

from fileq.core.errors import ConfigError
from fileq.worker.executors.process.child import (
    Child,
    become_child,
    become_deaf,
    do_nothing,
    flush_output,
    read_program,
    show_output_by_line,
)
from fileq.worker.executors.process.descendants import children_of, end_children, kill_children, reap_children
from fileq.worker.executors.process.messages import (
    LONGEST_PACKET,
    Ended,
    Exited,
    FromServer,
    Loaded,
    NotSpawned,
    Spawned,
    decode_spawn,
    encode,
)
from fileq.worker.executors.process.prctl import adopt_orphans, set_name
from fileq.worker.executors.process.program import Program, Run, one_line, python_command


def main() -> None:
    """The guard. Its arguments: the control socket, a file that holds the program, the worker's pid."""
    control_fd, program_fd, worker_pid = map(int, sys.argv[1:])
    sys.argv[1:] = []
    for fd in (control_fd, program_fd):
        os.set_inheritable(fd, False)
    become_deaf()
    adopt_orphans()
    set_name("fileq-guard")
    control = socket.socket(fileno=control_fd)
    guard_pid = os.getpid()
    server_pid = os.fork()
    if server_pid == 0:
        _be_server(control, program_fd, guard_pid)
    worker, server = os.pidfd_open(os.getppid()), os.pidfd_open(server_pid)
    poll = select.poll()
    poll.register(control, 0)  # only that the worker hung up
    for fd in (worker, server):
        poll.register(fd, select.POLLIN)
    if os.getppid() == worker_pid:
        poll.poll()
    with contextlib.suppress(OSError):
        waited, status = os.waitpid(server_pid, os.WNOHANG)
        if waited:
            control.send(encode(Ended(os.waitstatus_to_exitcode(status))), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    control.close()
    end_children()


def _be_server(control: socket.socket, program_fd: int, guard_pid: int) -> NoReturn:
    try:
        set_name("fileq-server")
        adopt_orphans()
        show_output_by_line()
        Server(control, program_fd, guard_pid).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class Server:
    """Never returns to whoever made it: it ends its process."""

    def __init__(self, control: socket.socket, program_fd: int, guard_pid: int) -> None:
        self._control = control
        self._program_fd = program_fd
        self._guard = os.pidfd_open(guard_pid)
        self._guard_pid = guard_pid
        self._children: dict[int, int] = {}  # pid → the worker's number for it
        self._spared: frozenset[int] = frozenset()
        self._wake, self._wake_end = os.pipe()
        for fd in (self._wake, self._wake_end):
            os.set_blocking(fd, False)

    def serve(self) -> NoReturn:
        run = self._loaded(read_program(self._program_fd))
        # After importing: whatever handlers were installed there are not for this process.
        become_deaf()
        signal.signal(signal.SIGCHLD, do_nothing)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        poll = select.poll()
        for fd in (self._control.fileno(), self._guard, self._wake):
            poll.register(fd, select.POLLIN)
        while os.getppid() == self._guard_pid:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake in ready:
                self._bury()
            if self._control.fileno() in ready:
                self._spawn(run)
        end_children()
        os._exit(0)

    def _loaded(self, program: Program) -> Run:
        try:
            run = program.load()
        except ConfigError as error:
            self._tell(Loaded(tuple(line[:1000] for line in error.problems[:50])))
            os._exit(1)
        self._spared = frozenset(children_of(os.getpid()))
        gc.collect()
        gc.freeze()  # what was imported stays shared with the children
        self._tell(Loaded())
        return run

    def _bury(self) -> None:
        """Tell who ended, and kill what they left: it is ours since the moment they ended."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        ended = reap_children()
        exits = [Exited(self._children.pop(pid), code) for pid, code in ended.items() if pid in self._children]
        kill_children(self._known())
        for exited in exits:
            self._tell(exited)

    def _known(self) -> set[int]:
        return {*self._children, *self._spared}

    def _spawn(self, run: Run) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, LONGEST_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:  # it ended without having heard all we had to say
            message = b""
        if not message:
            os._exit(0)  # the worker hung up: PDEATHSIG ends the children, the guard what they leave
        child, stream = decode_spawn(message).child, fds[0]
        try:
            pid = self._forked(stream, run) if _has_one_thread() else self._started(stream)
            pidfd = os.pidfd_open(pid)  # one that is not registered below is killed as a leftover
        except OSError as error:
            self._tell(NotSpawned(child, one_line(error)))
            kill_children(self._known())
        else:
            self._children[pid] = child
            self._tell(Spawned(child, pid), pidfd)
            os.close(pidfd)
        finally:
            os.close(stream)

    def _forked(self, stream: int, run: Run) -> int:
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
            Child(stream, run).serve()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _started(self, stream: int) -> int:
        command = python_command("fileq.worker.executors.process.child", stream, self._program_fd, os.getpid())
        for fd in (stream, self._program_fd):
            os.set_inheritable(fd, True)
        try:
            return os.posix_spawn(command[0], command, os.environ)
        finally:
            os.set_inheritable(self._program_fd, False)

    def _tell(self, message: FromServer, *fds: int) -> None:
        try:
            socket.send_fds(self._control, [encode(message)], fds)
        except OSError:
            os._exit(0)


def _has_one_thread() -> bool:
    return len(os.listdir("/proc/self/task")) == 1
