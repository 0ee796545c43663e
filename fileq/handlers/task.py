"""One run of one handler, as the pump hands it to an executor: plain values that can be sent to another process."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from fileq.core.job import ClaimKey
from fileq.core.outcome import Changed, Died, Done, Failed, Refused, Released

# What a run can give. Died is reported by the executor when the process of the run ended. Refused and Released are only
# for jobs of fileq's own types: another program enqueued the job, or the broker can't be asked about that.
Ran: TypeAlias = Done | Failed | Died | Changed | Refused | Released


class Task(Struct, frozen=True, array_like=True):
    """What to run and on what. `key` names the claim, `route` is the number of the job's route in Routes.

    `path` is the file as this machine sees it, b"" for a job without a file. When the task runs, the file must lie
    below one of `roots`. A file whose signature is no longer the job's is run only if `runs_changed`."""

    key: ClaimKey
    raw: bytes
    route: int
    path: bytes
    roots: tuple[bytes, ...]
    attempt: int
    timeout_s: float
    runs_changed: bool = False
