"""One run of one handler, as it is handed to whoever runs it: plain values that cross process borders as they are."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from fileq.core.claim import ClaimKey
from fileq.core.outcome import Died, Done, Failed


class Task(Struct, frozen=True):
    """What to run and on what. `key` names the claim; `route` is the number of the route that was found for the job.

    `path` is the file as this machine sees it, b"" for a job that is not about a file; it must lie below one of
    `roots` when it is opened. A file whose signature is no longer the job's is run only if `runs_changed`."""

    key: ClaimKey
    raw: bytes
    route: int
    path: bytes
    roots: tuple[bytes, ...]
    attempt: int
    timeout_s: float
    runs_changed: bool = False


class Changed(Struct, frozen=True, tag=True):
    """The file is another version now; nothing was run."""

    signature: str


Ran: TypeAlias = Done | Failed | Died | Changed
