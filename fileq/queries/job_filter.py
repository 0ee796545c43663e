"""The conditions that choose jobs: the same for `list`, `dlq list|retry|delete`, `cancel` and `reprocess`.

Must not know a broker. `fileq/cli/arguments.py` has the options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.types import Record
from fileq.core.api_key import Restriction
from fileq.core.delivery import without_files
from fileq.core.errors import ConfigError
from fileq.core.job import Job, State, decode_or_none, parsed_ms
from fileq.core.outcome import kind_of
from fileq.core.own_jobs import is_own_type
from fileq.core.schedule import is_of_schedule
from fileq.core.text import without_path
from fileq.files.globs import Globs
from fileq.queries.documents import JobDocument, fingerprint_of, job_document


class JobFilter(Struct, frozen=True):
    """Which jobs a command is about: those that meet every condition. None is no condition.

    `since_ms` and `until_ms` are about the time when a job ended or, until then, when it was created. `limit` is the
    largest number of jobs. `worker` is the id of the slot that runs or last ran a job, `schedule` the name of the
    schedule that enqueued it. `batch` is the id of the batch that a job is a member of or names. `fingerprint` is that
    of a dead job, or its beginning. `text` is in the id, path, type or error of a job; case-insensitive.
    `leaves_deliveries` leaves out the deliveries of webhooks, unless `type` is set; it is no condition. Nor is
    `ignores_paths`: `text` and `error` are then compared with texts that have `…` in place of the job's path and the
    name of its file, and of the files that the check of a delivery names. `only` is the restriction of the caller's
    key, None without one."""

    state: State | None = None
    type: str | None = None
    match: str | None = None
    error: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    queue: str | None = None
    limit: int | None = None
    fingerprint: str | None = None
    priority: str | None = None
    worker: str | None = None
    batch: str | None = None
    schedule: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    text: str | None = None
    leaves_deliveries: bool = False
    ignores_paths: bool = False
    only: Restriction | None = None

    @property
    def has_conditions(self) -> bool:
        """Whether a condition other than the state is set."""
        others = (self.type, self.match, self.error, self.since_ms, self.until_ms, self.queue, self.fingerprint)
        more = (self.priority, self.worker, self.batch, self.schedule, self.text, self.tags or None, self.only)
        return any(value is not None for value in (*others, *more))

    def states(self, possible: Sequence[State], why: str) -> tuple[State, ...]:
        """The wanted states, or all possible ones. ConfigError, saying why, if the wanted one is not possible."""
        if self.state is None:
            return tuple(possible)
        if self.state not in possible:
            names, given = ", ".join(state.value for state in possible), self.state.value
            raise ConfigError(f"--state is '{given}'; {why}: give {names}, or leave it out")
        return (self.state,)


class StoredJob(Struct, frozen=True):
    """The bytes that a place of the broker holds, the job in them if they are one, and its record."""

    raw: bytes
    id: str
    job: Job | None
    record: Record | None
    state: State
    queue: str = ""  # the queue that holds the bytes; "" in any other place

    @property
    def error(self) -> str:
        error = self.job.error if self.job is not None else None
        return error or (self.record.error if self.record is not None else "")

    @property
    def fingerprint(self) -> str:
        """Of a dead job; "" otherwise."""
        return fingerprint_of(self.job, self.record, self.error) if self.state is State.DEAD else ""

    @property
    def batches(self) -> tuple[str, str]:
        """The batch that it is a member of, and the one that its own JSON names; "" for none."""
        member = self.record.batch if self.record is not None else ""
        return member, (self.job.batch_id or "") if self.job is not None else ""

    @property
    def home(self) -> str:
        """The queue that holds the job, or to which it belongs."""
        if self.queue:
            return self.queue
        named = self.record.queue if self.record is not None else ""
        return named or (self.job.priority if self.job is not None else "")

    @property
    def time_ms(self) -> int:
        """When the job ended or, until then, when it was created; 0 if that is unknown."""
        if self.record is not None and self.record.ended_ms and self.state in ENDED:
            return self.record.ended_ms
        if self.record is not None:
            return self.record.created_ms
        return parsed_ms(self.job.creation_time) if self.job is not None else 0

    def document(self, *, is_outline: bool = True) -> JobDocument:
        """The job as its place holds it. One that another program pushed may have no record."""
        record = self.record
        if record is None:
            died_ms = parsed_ms(self.job.failed_at or "") if self.job is not None else 0
            record = Record(self.id, self.state, self.raw, self.home, created_ms=self.time_ms, ended_ms=died_ms)
        queue = record.queue or self.home
        return job_document(replace(record, state=self.state, raw=self.raw, queue=queue), is_outline=is_outline)


ENDED = (State.DEAD, State.COMPLETED, State.CANCELLED)


def waiting_since_ms(raw: bytes) -> int | None:
    """Since when the job in these bytes is ready: its creation or due time; None if the bytes are not a job."""
    job = decode_or_none(raw)
    if job is None:
        return None
    return max(parsed_ms(job.creation_time), parsed_ms(job.process_at or "")) or None


def file_place(record: Record) -> bytes:
    """Where the file of a job is: it may have been moved after this job, or before it, if the job was enqueued for the
    moved file. b"" for a job without a file."""
    job = decode_or_none(record.raw)
    return record.moved_to or (job.path if job is not None else b"")


class Conditions:
    """A filter, ready to be applied. The state is not among the conditions: it decides which places are read."""

    def __init__(self, wanted: JobFilter) -> None:
        self._wanted = wanted
        self._matches = path_matcher(wanted.match) if wanted.match is not None else None
        self._error = wanted.error.casefold() if wanted.error is not None else None
        self._text = wanted.text.casefold() if wanted.text is not None else None
        others = (wanted.since_ms, wanted.until_ms, wanted.worker, wanted.fingerprint, wanted.batch)
        self.needs_records = any(value is not None for value in others)
        self.is_open = not (wanted.has_conditions or wanted.leaves_deliveries)  # to every job

    def meets_bytes(self, job: Job | None) -> bool:
        """The conditions that need no record. None: bytes that are not a job, which have neither type nor path."""
        wanted = self._wanted
        if wanted.only is not None and not wanted.only.covers(job):
            return False
        if wanted.type is not None and (job is None or job.type != wanted.type):
            return False
        if wanted.leaves_deliveries and wanted.type is None and job is not None and is_delivery(job):
            return False
        if wanted.priority is not None and (job is None or job.priority != wanted.priority):
            return False
        if wanted.schedule is not None and (job is None or not is_of_schedule(job.id, wanted.schedule)):
            return False
        if wanted.tags and (job is None or not job.tag_values.items() >= set(wanted.tags)):
            return False
        return self._matches is None or (job is not None and bool(job.filepath) and self._matches(job.path))

    def meets_without_record(self, job: Job | None, state: State) -> bool | None:
        """Whether a job in a place of this state meets all conditions; None if only its record says it."""
        if not self.meets_bytes(job):
            return False
        is_queue_open = self._wanted.queue is not None and state is not State.PENDING
        if self.needs_records or is_queue_open:
            return None
        if self._error is None and self._text is None:
            return True
        error = _error_in(job, state)
        if job is None or error is None:
            return None
        return self._meets_words(job.id, job, error)

    def meets(self, stored: StoredJob) -> bool:
        """All conditions."""
        return (
            self.meets_bytes(stored.job)
            and self.meets_time(stored.time_ms)
            and self._meets_words(stored.id, stored.job, stored.error)
            and self._wanted.queue in (None, stored.home)
            and self._wanted.worker in (None, stored.record.slot if stored.record is not None else "")
            and (self._wanted.fingerprint is None or stored.fingerprint.startswith(self._wanted.fingerprint))
            and self._wanted.batch in (None, *stored.batches)
        )

    def _meets_words(self, id: str, job: Job | None, error: str) -> bool:
        path = job.filepath if job is not None else ""
        if self._wanted.ignores_paths:
            path, error = "", without_files(without_path(error, path))
        words = (id, path, (job.type if job is not None else "") or "", error)
        return self.meets_error(error) and (self._text is None or self._text in "\n".join(words).casefold())

    def meets_path(self, path: bytes) -> bool:
        return self._matches is None or self._matches(path)

    def meets_time(self, time_ms: int) -> bool:
        since_ms, until_ms = self._wanted.since_ms, self._wanted.until_ms
        return (since_ms is None or time_ms >= since_ms) and (until_ms is None or time_ms <= until_ms)

    def meets_error(self, error: str) -> bool:
        """The error contains the text, or is of the kind that is written like it. Case-insensitive."""
        return self._error is None or self._error in error.casefold() or self._error == kind_of(error).casefold()


def is_delivery(job: Job) -> bool:
    """Whether it is a delivery of a webhook. Those about cancellations must not be cancelled with the jobs."""
    return is_own_type(job.type)


def _error_in(job: Job | None, state: State) -> str | None:
    """The error of a job as its own bytes say it; None if only its record does. A dead job has its error in its bytes.
    A job that never failed has none; one that waits for another attempt has its error in the record."""
    if job is None:
        return None
    if job.error:
        return job.error
    has_failed = bool(job.retries or job.recoveries or job.first_error)
    return None if has_failed or state is State.DEAD else ""


def path_matcher(pattern: str) -> Callable[[bytes], bool]:
    """Returns a predicate for paths. A pattern that begins with a slash matches the whole path, any other its end."""
    if not pattern:
        raise ConfigError("--match is empty; give a glob such as '*.pdf' or '/srv/inbox/**/*.pdf'")
    globs = Globs([pattern.lstrip("/") if pattern.startswith("/") else f"**/{pattern}"])

    def matches(path: bytes) -> bool:
        prefix, slash, name = path.decode(errors="surrogateescape").lstrip("/").rpartition("/")
        return globs.match(prefix + slash, name)

    return matches
