"""The messages between worker, fork server and children. Plain data in msgpack, never pickle.

Worker ↔ child: a stream. Each message is a header (length of the body, number of the task) and a body.
    worker → child   Task                 run it if its token can be read, see TaskTokens; others may follow it
                     empty body           stop the task of that number; WAKE_SIGNAL is sent as well
    child → worker   empty body, number 0 the child is ready
                     Ran                  the outcome of the task of that number, before the next one begins. If
                                          OUTPUT_IS_LEFT is set in the length, the output pipe holds output of the task
                                          and its end
Worker ↔ fork server: packets of one message each, with descriptors attached.
    worker → server  Ping, answered by Pong
                     Spawn + the child's end of its stream, of its tokens and, if its output is captured, of its output
                     pipe
    server → worker  HandlersLoaded first; Spawned + a pidfd, or NotSpawned, for each Spawn; Exited for each child that
                     ended; ForkServerEnded last, sent by the guard
"""

from __future__ import annotations

import enum
import importlib
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable
from fcntl import F_SETPIPE_SZ, fcntl
from typing import Any, TypeAlias, cast

from msgspec import Struct, msgpack

from fileq.core.errors import ConfigError
from fileq.core.outcome import Ran, Task
from fileq.worker.executors.protocol import Run

HEADER = struct.Struct("<II")
MAX_OUTCOME_BYTES = 16 << 20
OUTPUT_IS_LEFT = 1 << 31  # no length has this bit
READ_SIZE = 1 << 16
NUMBER_LIMIT = 1 << 32  # numbers of tasks and children are unsigned 32-bit integers
READY = _NO_HEADER = HEADER.pack(0, 0)
MAX_PACKET_BYTES = 1 << 16
MAX_PACKET_FDS = 3

# Makes a child that runs a task read its stream. Neither Python nor common libraries use this signal.
WAKE_SIGNAL = signal.SIGRTMIN + 7
STACK_SIGNAL = signal.SIGRTMIN + 8  # makes it report where its handler is, see output_pipe.py
EXIT_STREAM_LOST = 76  # exit status of a child whose handler closed the stream


class DirtyExit(enum.IntEnum):
    """Exit statuses of a child that its last task left in a state that can't be restored."""

    DESCRIPTORS = 80
    USER = 81
    LIMITS = 82
    THREADS = 83


DIRTY_EXITS: dict[int, str] = {
    DirtyExit.DESCRIPTORS: "its handler closed standard streams or other descriptors",
    DirtyExit.USER: "its handler changed the user or the group",
    DirtyExit.LIMITS: "its handler changed resource limits",
    DirtyExit.THREADS: "its handler left threads running",
}

decode_task = msgpack.Decoder(Task).decode
decode_ran: msgpack.Decoder[Ran] = msgpack.Decoder(Ran)
_encoder = msgpack.Encoder()


class Spawn(Struct, frozen=True, tag=True):
    """`secret` is that of the marks in the output pipe."""

    child: int
    secret: bytes = b""


class Ping(Struct, frozen=True, tag=True):
    """Asks the fork server whether it still works."""


class Pong(Struct, frozen=True, tag=True):
    """The answer to a Ping."""


class HandlersLoaded(Struct, frozen=True, tag=True):
    """The handlers are imported, or can't be because of these problems."""

    problems: tuple[str, ...] = ()


class Spawned(Struct, frozen=True, tag=True):
    child: int
    pid: int


class NotSpawned(Struct, frozen=True, tag=True):
    child: int
    error: str


class Exited(Struct, frozen=True, tag=True):
    """`code` is the exit status, or minus the number of the signal that killed the child."""

    child: int
    code: int


class ForkServerEnded(Struct, frozen=True, tag=True):
    """`code` as in Exited."""

    code: int


FromServer: TypeAlias = HandlersLoaded | Pong | Spawned | NotSpawned | Exited | ForkServerEnded
decode_from_server: msgpack.Decoder[FromServer] = msgpack.Decoder(FromServer)
decode_to_server: msgpack.Decoder[Spawn | Ping] = msgpack.Decoder(Spawn | Ping)
encode = _encoder.encode


def framed(number: int, body: Task | Ran, *, has_output: bool = False) -> bytearray:
    """One message of the stream, header included."""
    message = bytearray()
    append_message(message, number, body, has_output=has_output)
    return message


def append_message(messages: bytearray, number: int, body: Task | Ran, *, has_output: bool = False) -> None:
    start = len(messages)
    messages += _NO_HEADER
    _encoder.encode_into(body, messages, -1)
    length = len(messages) - start - HEADER.size
    HEADER.pack_into(messages, start, length | OUTPUT_IS_LEFT if has_output else length, number)


def cause_of_death(code: int) -> str:
    """`exited with status 3`, `killed by signal SIGSEGV`."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"killed by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


# What children run, as data that can be sent to another process: the name of a function and its argument.
#
# The fork server loads it once for all children that it forks. A child started in a fresh interpreter loads it
# itself.


class Program(Struct, frozen=True):
    """`loader`, a "package.module:function", is called with `argument` and returns the function that runs tasks.

    `hidden_variables` of the environment are removed before the first process below the worker starts. With
    `prints_directly` the output pipe has no output: only where a handler is when its time is up."""

    loader: str
    argument: bytes = b""
    hidden_variables: tuple[str, ...] = ()
    prints_directly: bool = False

    def load(self) -> Run:
        """Import and call the loader. Raises only ConfigError, with one line for each problem."""
        module, _, function = self.loader.partition(":")
        try:
            return cast(Run, getattr(importlib.import_module(module), function)(self.argument))
        except ConfigError:
            raise
        except BaseException as error:
            raise ConfigError(f"the handlers can't be loaded: {error_line(error)}") from error


def python_command(module: str, *arguments: object) -> list[str]:
    """The command of a fresh interpreter that calls module.main(), with this one's sys.path and switches.

    Not `-m`, which puts the working directory first on the path: a `queue.py` there would hide the standard one."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"
    switches: list[str] = cast(Any, subprocess)._args_from_interpreter_flags()
    return [sys.executable, *switches, "-c", code, *map(str, arguments)]


def error_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# The tokens of one child's tasks: the side that reads a task's token, child or worker, decides where the task runs.
#
# A token is the number of its task in four bytes of a pipe. The worker writes the tokens before the tasks. The child
# reads one token before it begins a task. The worker reads those that are left, to take back the tasks that wait
# behind a slow one. The kernel gives each token, as a whole, to one reader only. So no task runs in two places.
#
# Both ends are non-blocking and close-on-exec. The worker opens the pipe for both directions, so it never ends, and a
# kill -9 of the child leaves the tokens of the tasks that it has not begun.


_TOKEN = struct.Struct("<I")
TOKEN_SIZE = _TOKEN.size
MAX_TOKENS = 64  # at the same time; far fewer than fit into one page


class TaskTokens:
    """The worker's side. `fd` can be written to, as poll() sees it, only while no token is left. `child_end` is for
    the child; close it here once the child has it."""

    def __init__(self) -> None:
        self.child_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # One page. A pipe can be written to while a page of it is free.
            fcntl(self.child_end, F_SETPIPE_SZ, 1)
            # One descriptor for both directions: a worker may have hundreds of children.
            self.fd = os.open(f"/proc/self/fd/{self.child_end}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except BaseException:
            self.close_child_end()
            raise
        finally:
            os.close(write_end)

    def put(self, numbers: Iterable[int]) -> None:
        """Call it before the tasks are sent, and only when no token is left."""
        os.write(self.fd, b"".join(map(_TOKEN.pack, numbers)))

    def take_back(self, limit: int = MAX_TOKENS) -> list[int]:
        """Takes at most `limit` of the numbers that are left. The child begins none of these tasks."""
        try:
            left = os.read(self.fd, limit * TOKEN_SIZE) if limit else b""
        except BlockingIOError:
            return []
        return [number for (number,) in _TOKEN.iter_unpack(left)]

    def close_child_end(self) -> None:
        if self.child_end >= 0:
            os.close(self.child_end)
            self.child_end = -1

    def close(self) -> None:
        """Call it once."""
        self.close_child_end()
        os.close(self.fd)


class TokenReader:
    """The child's side. Never call it in a copy of the child that a handler forked."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._token = b""  # a token that was read ahead: it is of a later task than take() was asked about

    def take(self, number: bytes | bytearray) -> bool:
        """Whether the task with this number, four bytes of its message, is this child's. Ask in the order of the tasks.

        False if the worker took the task back. The next token is then missing, or that of a later task."""
        if not self._token:
            try:
                self._token = os.read(self._fd, TOKEN_SIZE)
            except BlockingIOError:
                return False
        if self._token != number:
            return False
        self._token = b""
        return True
