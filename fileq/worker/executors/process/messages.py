"""The messages between worker, fork server and children. Plain data in msgpack, never pickle.

Worker ↔ child: a stream. Each message is a header (length of the body, number of the task) and a body.
    worker → child   Task                 run it if its token can be read, see task_tokens.py; others may follow it
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
import signal
import struct
from typing import TypeAlias

from msgspec import Struct, msgpack

from fileq.handlers.task import Ran, Task

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
STACK_SIGNAL = signal.SIGRTMIN + 8  # makes it report where its handler is, see stack_report.py
EXIT_STREAM_LOST = 76  # exit status of a child whose handler closed the stream


class DirtyExit(enum.IntEnum):
    """Exit statuses of a child that its last task left in a state that can't be restored."""

    DESCRIPTORS = 80
    USER = 81
    LIMITS = 82
    THREADS = 83

    @property
    def reason(self) -> str:
        return _REASONS[self]


_REASONS = {
    DirtyExit.DESCRIPTORS: "its handler closed standard streams or other descriptors",
    DirtyExit.USER: "its handler changed the user or the group",
    DirtyExit.LIMITS: "its handler changed resource limits",
    DirtyExit.THREADS: "its handler left threads running",
}


DIRTY_EXITS = frozenset(map(int, DirtyExit))

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
