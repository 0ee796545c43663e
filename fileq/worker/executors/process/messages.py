"""What worker, fork server and children say to each other. Plain data in msgpack, never pickle.

Worker ↔ child, a stream: each message is a header (length of what follows, number of the task) and a body.
    worker → child   Task               begin it; the next comes only after this one's outcome
                     nothing            stop the task of that number (context.cancelled); DOORBELL is rung as well
    child → worker   nothing, number 0  ready
                     Ran                the outcome of the task of that number
Worker ↔ fork server, packets of one message each, descriptors beside it.
    worker → server  Spawn + the child's end of its stream
    server → worker  Loaded, then Spawned + a pidfd or NotSpawned for each Spawn, Exited for each child that ended;
                     last, by the guard, Ended
"""

from __future__ import annotations

import signal
import struct
from typing import TypeAlias

from msgspec import Struct, msgpack

from fileq.handlers.task import Ran, Task

HEADER = struct.Struct("<II")
LONGEST_RAN = 16 << 20  # bytes of an outcome; whoever announces more is not talking to us
BLOCK = 1 << 16
NUMBERS = 1 << 32
READY = HEADER.pack(0, 0)

# Tells a child that has a task running to look at its stream. Not one of the signals that handlers or libraries use.
DOORBELL = signal.SIGRTMIN + 7
EXIT_CUT_OFF = 76  # of a child whose handler closed the stream
LONGEST_PACKET = 1 << 16

decode_task = msgpack.Decoder(Task).decode
decode_ran: msgpack.Decoder[Ran] = msgpack.Decoder(Ran)
_encoder = msgpack.Encoder()


class Spawn(Struct, frozen=True, tag=True):
    child: int


class Loaded(Struct, frozen=True, tag=True):
    """The handlers are imported, or this is what stood against it."""

    problems: tuple[str, ...] = ()


class Spawned(Struct, frozen=True, tag=True):
    child: int
    pid: int


class NotSpawned(Struct, frozen=True, tag=True):
    child: int
    error: str


class Exited(Struct, frozen=True, tag=True):
    """`code` is the exit status, or minus the number of the signal that ended it."""

    child: int
    code: int


class Ended(Struct, frozen=True, tag=True):
    """The fork server itself."""

    code: int


FromServer: TypeAlias = Loaded | Spawned | NotSpawned | Exited | Ended
decode_from_server: msgpack.Decoder[FromServer] = msgpack.Decoder(FromServer)
decode_spawn = msgpack.Decoder(Spawn).decode
encode = _encoder.encode


def framed(number: int, body: Task | Ran) -> bytearray:
    """One message, header and all."""
    message = bytearray(HEADER.size)
    _encoder.encode_into(body, message, HEADER.size)
    HEADER.pack_into(message, 0, len(message) - HEADER.size, number)
    return message


def cause_of_death(code: int) -> str:
    """`exited with status 3`, `killed by signal SIGSEGV`."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"killed by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
