"""The format of a child's output pipe: what handlers print, as it is, and marks of the child between it.

A mark is a secret of this child, one JSON object and a newline: a record of `logging`, the end of a task, or where its
handler is. A handler that prints something similar does not know the secret, so its line stays a line. A mark is
written by one call and is not longer than PIPE_BUF: the kernel never mixes it with the output of another process.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator
from typing import TypeAlias

import msgspec
from msgspec import Struct

from fileq.handlers.tracebacks import cut_middle

_START = b"\x1e"  # is not in the rest of a mark, so a mark that is cut is found by its start
_LONGEST_LOGGER = 200


class LoggedRecord(Struct, frozen=True, tag=True, array_like=True):
    level: str
    logger: str
    text: str


class TaskEnd(Struct, frozen=True, tag=True, array_like=True):
    """Everything before it was printed by the task of this number or by earlier ones."""

    number: int


class HandlerStack(Struct, frozen=True, tag=True, array_like=True):
    """Where the handler is: the answer to STACK_SIGNAL."""

    text: str


Mark: TypeAlias = LoggedRecord | TaskEnd | HandlerStack
_decoder: msgspec.json.Decoder[Mark] = msgspec.json.Decoder(Mark)
_encoder = msgspec.json.Encoder()


def new_secret() -> bytes:
    return _START + os.urandom(12).hex().encode()


def encode_record(secret: bytes, level: str, logger: str, text: str) -> bytes:
    """The record as a mark; a text that is too long loses its end."""
    text, logger = (s.encode("utf-8", "backslashreplace").decode() for s in (text, logger[:_LONGEST_LOGGER]))
    text = text[: select.PIPE_BUF]
    while len(mark := _encoded(secret, LoggedRecord(level, logger, text))) > select.PIPE_BUF:
        text = text[: len(text) * 3 // 4] + "…"
    return mark


def encode_end(secret: bytes, number: int) -> bytes:
    return _encoded(secret, TaskEnd(number))


def encode_stack(secret: bytes, text: str) -> bytes:
    """The stack as a mark; a text that is too long loses its middle."""
    longest = select.PIPE_BUF
    while len(mark := _encoded(secret, HandlerStack(cut_middle(text, longest)))) > select.PIPE_BUF:
        longest = longest * 3 // 4
    return mark


def _encoded(secret: bytes, mark: Mark) -> bytes:
    return secret + _encoder.encode(mark) + b"\n"


class OutputSplitter:
    """Parts what handlers printed from the marks, however the reads have cut the pipe's content."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._rest = b""  # the beginning of a mark, or of what may become one

    def feed(self, block: bytes) -> Iterator[bytes | Mark]:
        data = self._rest + block if self._rest else block
        self._rest = b""
        while (at := data.find(self._secret)) >= 0:
            end = data.find(b"\n", at)
            if end < 0:
                break
            if at:
                yield data[:at]
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # not written by the child
                yield _decoder.decode(data[at + len(self._secret) : end])
            data = data[end + 1 :]
        kept = at if at >= 0 else self._possible_start(data)
        if kept < len(data) - select.PIPE_BUF:
            kept = len(data)  # longer than any mark
        self._rest = data[kept:]
        if kept:
            yield data[:kept]

    def _possible_start(self, data: bytes) -> int:
        """Where a mark that is not complete may begin; the length of the data if nowhere."""
        at = data.rfind(_START, max(0, len(data) - len(self._secret)))
        return at if at >= 0 and self._secret.startswith(data[at:]) else len(data)
