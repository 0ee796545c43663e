"""Every error fileq raises on purpose. Users know JobFailedError as fileq.JobFailed, as `public` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fileq.core.public_name import public

if TYPE_CHECKING:
    from fileq.core.units import Duration


@public()
class FileqError(Exception):
    """The base class of every error that fileq raises on purpose."""


@public()
class ConfigError(FileqError):
    """Holds every problem found, one line each, so that one run reports them all."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


@public()
class BrokerError(FileqError):
    """The broker answered and refused; repeating the call will not help."""


@public()
class BrokerUnavailable(BrokerError):
    """The broker is unavailable (down, loading, read-only, full). This is never a job's failure."""


class Unknown(BrokerError):
    """The broker has nothing of this id or name."""


class Conflict(BrokerError):
    """The document has another revision than the caller expected; nothing changed. Read it again."""


class BrokerRemoved(BrokerError):
    """The data that this process works on was deleted or replaced. What it still wrote would be lost."""


@public()
class BatchError(FileqError):
    """The batch is unknown, or no longer accepts jobs."""


@public()
class JobError(FileqError):
    """About one job, never about the queue."""


class Undecodable(JobError):
    """These bytes are not a job; the message says why."""


@public("JobFailed")
class JobFailedError(JobError):
    """The job is dead: `error` is its last error, `attempts` how often it ran."""

    def __init__(self, error: str, attempts: int) -> None:
        super().__init__(error, attempts)
        self.error = error
        self.attempts = attempts

    def __str__(self) -> str:
        if not self.attempts:
            return f"{self.error} (it never ran)"
        return f"{self.error} (after {self.attempts} attempt{'' if self.attempts == 1 else 's'})"


@public("JobCancelled")
class JobCancelledError(JobError):
    """The job was cancelled, so it has no result."""


@public()
class ResultExpired(JobError):
    """The record of the job is gone, and its result with it."""


@public()
class Retry(JobError):
    """Raise in a handler to fail this attempt and choose the delay before the next: seconds, "30s" or a timedelta."""

    def __init__(self, message: str = "retry requested", *, after: Duration | None = None) -> None:
        super().__init__(message)
        self.after_s: float | None
        if after is None or (isinstance(after, int | float) and not isinstance(after, bool)):
            self.after_s = after  # one that was computed may be below 0, which is at once
            return
        from fileq.core.units import seconds  # imports msgspec, which 'fileq --version' does without

        try:
            self.after_s = seconds(after)
        except ValueError as error:
            raise ConfigError(f"after is {after!r}; it must be {error}") from None


@public()
class Permanent(JobError):
    """Raise in a handler to skip the remaining attempts."""
