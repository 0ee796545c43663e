"""Every error fileq raises on purpose.

FileqError
├── ConfigError            a flag, key, value or file is wrong; all problems at once
├── BrokerError            the broker answered, and refused
│   ├── BrokerUnavailable  the broker is away; the same call may succeed later
│   └── LeaseLost          this slot no longer holds the job it speaks of
└── JobError               raised by or about one job
    ├── Undecodable        bytes in a queue that are not a job
    ├── Retry              a handler asks for another attempt, after a delay of its choice
    └── Permanent          a handler says that no attempt will ever succeed
"""

from __future__ import annotations

from collections.abc import Sequence


class FileqError(Exception):
    """The root: catching it catches everything fileq raises on purpose."""


class ConfigError(FileqError):
    """Holds every problem found, one line each, so that one run shows them all."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class BrokerError(FileqError):
    """The broker answered and refused; repeating the call will not help."""


class BrokerUnavailable(BrokerError):
    """The broker is away (down, loading, read-only, full); no job is to blame."""


class LeaseLost(BrokerError):
    """The slot lost the job to a reaper; whatever it did since then does not count."""


class JobError(FileqError):
    """About one job, never about the queue."""


class Undecodable(JobError):
    """These bytes are not a job; the message says why."""


class Retry(JobError):
    """Raise in a handler to fail this attempt and choose the delay before the next."""

    def __init__(self, message: str = "retry requested", *, after: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after


class Permanent(JobError):
    """Raise in a handler to skip the remaining attempts."""
