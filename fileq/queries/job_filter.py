"""The conditions that choose jobs, declared once: options of the command line (cli/arguments.py), parameters and bodies
of the API, and keywords of clients are made from this declaration.

Must not know a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Literal, TypeAlias, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import replace

from fileq.brokers.types import Record
from fileq.core.api_key import Restriction
from fileq.core.delivery import without_files
from fileq.core.errors import ConfigError
from fileq.core.job import Job, State, decode_or_none, parsed_ms, stamp
from fileq.core.outcome import kind_of
from fileq.core.own_jobs import is_own_type
from fileq.core.schedule import is_of_schedule
from fileq.core.text import without_path
from fileq.core.units import parse_duration
from fileq.queries.documents import JobDocument, fingerprint_of, job_document

# `processing` is another word for running, `failed` for retrying.
StatusWord: TypeAlias = Literal[
    "pending", "scheduled", "running", "retrying", "deferred", "completed", "dead", "cancelled", "processing", "failed"
]
_Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=500)]
_Time: TypeAlias = Annotated[str, Meta(min_length=1, max_length=50)]
_Fingerprint: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-fA-F]{4,12}$")]
# Conditions that the filter has under the same name, and as they were given.
_SHARED = ("type", "priority", "queue", "worker", "batch", "schedule", "match", "error")


def _about(meaning: str, value: str, max_length: int | None = None) -> Meta:
    """What a condition means, and what its value is called in a command line."""
    return Meta(description=meaning, extra={"metavar": value}, max_length=max_length)


class JobConditions(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The conditions that choose jobs, which must meet all of them: the same for options of the command line, query
    parameters and bodies of the API, and keywords of clients."""

    status: Annotated[StatusWord | None, _about("jobs in this status", "STATUS")] = None
    type: Annotated[_Text | None, _about("jobs of this type (exact match)", "T")] = None
    priority: Annotated[_Text | None, _about("jobs with this priority in their JSON", "PRIORITY")] = None
    queue: Annotated[_Text | None, _about("jobs of this queue, one of worker.priorities", "QUEUE")] = None
    worker: Annotated[_Text | None, _about("jobs that the worker with this id runs or last ran", "WORKER")] = None
    batch: Annotated[_Text | None, _about("jobs of the batch with this id", "BATCH")] = None
    schedule: Annotated[_Text | None, _about("jobs that this schedule enqueued", "NAME")] = None
    match: Annotated[
        _Text | None,
        _about(
            "jobs whose file matches, in any directory: '*.pdf' matches the name, 'north/*.pdf' the end of the path, a "
            "pattern with a leading slash the whole path; case-sensitive. In a route, '*.pdf' means the top level "
            "only",
            "GLOB",
        ),
    ] = None
    error: Annotated[
        _Text | None,
        _about(
            "jobs whose error contains this text or is of this kind, as 'fileq stats' lists it (case-insensitive)",
            "TEXT",
        ),
    ] = None
    fingerprint: Annotated[
        _Fingerprint | None,
        _about("jobs that died of this cause: a fingerprint of 'fileq dlq groups', or its first 4 digits", "HEX"),
    ] = None
    since: Annotated[
        _Time | None, _about("jobs ended or, until then, created since: RFC 3339, or 2h for two hours ago", "TIME")
    ] = None
    until: Annotated[_Time | None, _about("jobs that ended (or were created, if unfinished) until", "TIME")] = None
    tag: Annotated[
        dict[str, _Text], _about("jobs with this tag; in a query `tag.NAME=VALUE`", "NAME=VALUE", max_length=20)
    ] = {}
    q: Annotated[
        _Text | None, _about("jobs whose id, path, type or error contains this text (case-insensitive)", "TEXT")
    ] = None


NAMES = JobConditions.__struct_fields__


def declared_conditions() -> Iterator[tuple[str, str, str]]:
    """Each condition: its name, its meaning, and what its value is called in a command line."""
    for name, hint in get_type_hints(JobConditions, include_extras=True).items():
        note = hint.__metadata__[-1]
        yield name, note.description, note.extra["metavar"]


def conditions_in(query: JobConditions) -> JobConditions:
    """Only the conditions of a query that has more parameters."""
    return JobConditions(*(getattr(query, name) for name in NAMES))


def read_conditions(
    given: JobConditions, queues: Sequence[str], now_ms: int
) -> tuple[JobFilter, list[tuple[str, str]]]:
    """The filter, and what is wrong: pairs of a condition and the problem with it."""
    wrong: list[tuple[str, str]] = []
    state = None
    try:
        state = State.from_filter(given.status) if given.status is not None else None
    except ValueError:
        wrong.append(("status", f"status is {given.status!r}; it must be one of {', '.join(State)}"))
    since_ms, until_ms = (_time_ms(name, getattr(given, name), now_ms, wrong) for name in ("since", "until"))
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        wrong.append(("since", "since is later than until, so no job can match; swap them"))
    if given.queue is not None and given.queue not in queues:
        wrong.append(("queue", f"no queue is named {given.queue!r}; the queues are {', '.join(queues)}"))
    wanted = JobFilter(
        state=state,
        since_ms=since_ms,
        until_ms=until_ms,
        fingerprint=given.fingerprint.lower() if given.fingerprint is not None else None,
        tags=tuple(sorted(given.tag.items())),
        text=given.q,
        **{name: getattr(given, name) for name in _SHARED},
    )
    return wanted, wrong


def conditions_of(wanted: JobFilter) -> JobConditions:
    """The opposite, for people and logs."""
    return JobConditions(
        status=wanted.state.value if wanted.state is not None else None,
        since=stamp(wanted.since_ms or 0),
        until=stamp(wanted.until_ms or 0),
        fingerprint=wanted.fingerprint,
        tag=dict(wanted.tags),
        q=wanted.text,
        **{name: getattr(wanted, name) for name in _SHARED},
    )


def _time_ms(name: str, text: str | None, now_ms: int, wrong: list[tuple[str, str]]) -> int | None:
    if text is None:
        return None
    try:
        return now_ms - round(parse_duration(text) * 1000)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    must_be = "it must be a time such as 2026-01-31T18:00:00Z, or a duration such as 2h"
    wrong.append((name, f"{name} is {text!r}; {must_be}"))
    return None


class JobFilter(Struct, frozen=True):
    """Conditions that were read, with what else chooses jobs: those that meet every condition. None is no condition.

    `text` is the condition `q`. `batch` is the id of the batch that a job is a member of or names. `limit` is the
    largest number of jobs. `leaves_deliveries` leaves out the deliveries of webhooks, unless `type` is set; it is no
    condition. Nor is `ignores_paths`: `text` and `error` are then compared with texts that have `…` in place of the
    job's path and the name of its file, and of the files that the check of a delivery names. `only` is the restriction
    of the caller's key, None without one."""

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
        others = (getattr(self, name) for name in (*_SHARED, "since_ms", "until_ms", "fingerprint", "text", "only"))
        return bool(self.tags) or any(value is not None for value in others)

    def states(self, possible: Sequence[State], why: str) -> tuple[State, ...]:
        """The wanted states, or all possible ones. ConfigError, saying why, if the wanted one is not among these."""
        if self.state is None:
            return tuple(possible)
        if self.state not in possible:
            names = ", ".join(state.value for state in possible)
            raise ConfigError(f"status is {self.state.value!r}; {why}: give {names}, or leave it out")
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
        named = self.queue or (self.record.queue if self.record is not None else "")
        return named or (self.job.priority if self.job is not None else "")

    @property
    def time_ms(self) -> int:
        """When the job ended or, until then, when it was created; 0 if that is unknown."""
        if self.record is not None and self.record.ended_ms and not self.state.is_unfinished:
            return self.record.ended_ms
        if self.record is not None:
            return self.record.created_ms
        return parsed_ms(self.job.creation_time) if self.job is not None else 0

    @property
    def known(self) -> Record:
        """Its record; of a job that another program pushed and that has none, what its bytes say."""
        if self.record is not None:
            return self.record
        died_ms = parsed_ms(self.job.failed_at or "") if self.job is not None else 0
        return Record(self.id, self.state, self.raw, self.home, created_ms=self.time_ms, ended_ms=died_ms)

    def document(self, *, is_outline: bool = True) -> JobDocument:
        """The job as its place holds it."""
        record = self.known
        queue = record.queue or self.home
        return job_document(replace(record, state=self.state, raw=self.raw, queue=queue), is_outline=is_outline)


def stored_as(record: Record) -> StoredJob:
    """The job of a record, wherever it is."""
    return StoredJob(record.raw, record.id, decode_or_none(record.raw), record, record.state)


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
        if job is None:
            about_jobs = (wanted.type, wanted.priority, wanted.schedule, wanted.match)
            return not wanted.tags and all(value is None for value in about_jobs)
        return (
            wanted.type in (None, job.type)
            and not (wanted.leaves_deliveries and wanted.type is None and is_own_type(job.type))
            and wanted.priority in (None, job.priority)
            and (wanted.schedule is None or is_of_schedule(job.id, wanted.schedule))
            and (not wanted.tags or job.tag_values.items() >= set(wanted.tags))
            and (self._matches is None or (bool(job.filepath) and self._matches(job.path)))
        )

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
    from fileq.files.globs import Globs  # not needed to offer the conditions as options

    globs = Globs([pattern.lstrip("/") if pattern.startswith("/") else f"**/{pattern}"])

    def matches(path: bytes) -> bool:
        prefix, slash, name = path.decode(errors="surrogateescape").lstrip("/").rpartition("/")
        return globs.match(prefix + slash, name)

    return matches
