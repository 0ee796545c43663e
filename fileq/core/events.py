"""The channel on which everything is told."""

from __future__ import annotations

from typing import Any, Protocol


class Emit(Protocol):
    """Tells that something happened: a dotted past-tense name and data. Logs and metrics listen; nobody answers.

    `level` is the log's; `none` is not worth a line."""

    def __call__(self, event: str, *, level: str = "info", **fields: Any) -> None: ...
