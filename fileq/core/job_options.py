"""The options of a new job that a program gives as keywords, to a client or to `context` in a handler: declared,
checked, sent to a server and applied to the job.

All of that is here only, so that every way in takes the same values. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Protocol, TypedDict, get_type_hints

from msgspec import Struct

from fileq.core.errors import ConfigError, JobError
from fileq.core.job import (
    COUNT_MAX,
    FIRST_MS,
    LAST_MS,
    UNIQUE_KEY_LENGTH,
    Job,
    checked_id,
    encoded_tags,
    new_ids,
    rfc3339_ms,
)
from fileq.core.text import check_names
from fileq.core.units import Duration, seconds

_TIME_TEXT = "2026-11-16T12:00:00Z"


class Moment(Struct, frozen=True):
    """A time, or a duration from when the job is made."""

    ms: int
    is_from_now: bool = False

    def sent(self) -> str | float:
        return self.ms / 1000 if self.is_from_now else rfc3339_ms(self.ms)

    def text(self, now_ms: int) -> str:
        """RFC 3339, of a job that is made now."""
        return rfc3339_ms(self.ms + now_ms * self.is_from_now)


# What an option may be. Each returns the checked value, or raises a ValueError that says what it must be, or
# another error that is complete.


def _text(text: str) -> str:
    if not isinstance(text, str):
        raise ValueError("a text")
    return text


def _duration_ms(duration: Duration) -> int:
    return round(seconds(duration) * 1000)


def _positive_s(duration: Duration) -> float:
    if not (ms := _duration_ms(duration)):
        raise ValueError("longer than 0")
    return ms / 1000


def _time_of(text: str) -> datetime | None:
    """No text is both a time and a duration."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _time_ms(given: datetime | str) -> int:
    time = _time_of(given) if isinstance(given, str) else given
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise ValueError(f"a datetime with its zone, such as datetime.now(UTC), or a text such as {_TIME_TEXT}")
    ms = round(time.timestamp() * 1000)
    if not FIRST_MS <= ms <= LAST_MS:
        raise ValueError("in the years 1 to 9999 of UTC")
    return ms


def _moment(given: datetime | Duration) -> Moment | None:
    if isinstance(given, datetime) or (isinstance(given, str) and _time_of(given) is not None):
        return Moment(_time_ms(given))
    try:
        ms = _duration_ms(given)
    except ValueError as error:
        raise ValueError(f"a time such as {_TIME_TEXT}, or {error}") from None
    return Moment(ms, is_from_now=True) if ms else None


def _count(value: int) -> int:
    if not (type(value) is int and 0 <= value <= COUNT_MAX):
        raise ValueError("a whole number of at least 0")
    return value


def _unique_key(key: str) -> str | None:
    if len(_text(key)) > UNIQUE_KEY_LENGTH or not key.isprintable():
        raise ValueError(f"at most {UNIQUE_KEY_LENGTH} printable characters")
    return key or None


def _id(id: str) -> str:
    return checked_id(id) if _text(id) else ""


def _tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(tags, Mapping):
        raise ValueError("texts by name, such as {'tenant': 'acme'}")
    encoded_tags(tags)
    return tags


class Option(Struct, frozen=True):
    """How a keyword becomes a field of the options, and with which name and value it is sent to a server. The names are
    that of the keyword if they are empty."""

    read: Callable[[Any], Any]
    field: str = ""
    sent_as: str = ""
    sent: Callable[[Any], Any] = lambda value: value


class JobKeywords(TypedDict, total=False):
    """What every method that makes jobs takes as keywords. None means the default. A time is an aware datetime, or a
    text such as "2026-11-16T12:00:00Z".

    `delay` or `at`: when the job is due. `timeout`: limit of one attempt. `deadline`: a time, or a duration from when
    the job is made, after which it is not started. `unique_key`: while an unfinished job has the same key, nothing is
    enqueued. `id`: an id of your own; if a job has it already, nothing is enqueued."""

    priority: Annotated[str | None, Option(_text)]
    delay: Annotated[Duration | None, Option(_duration_ms, "delay_ms", sent=lambda ms: ms / 1000)]
    at: Annotated[datetime | str | None, Option(_time_ms, "at_ms", "scheduled_at", rfc3339_ms)]
    max_retries: Annotated[int | None, Option(_count)]
    timeout: Annotated[Duration | None, Option(_positive_s, "timeout_s")]
    deadline: Annotated[datetime | Duration | None, Option(_moment, sent=Moment.sent)]
    unique_key: Annotated[str | None, Option(_unique_key)]
    id: Annotated[str | None, Option(_id)]
    tags: Annotated[Mapping[str, str] | None, Option(_tags)]


@cache
def declared_options(declared: type) -> Mapping[str, Option]:
    hints = get_type_hints(declared, include_extras=True)
    options = {name: hint.__metadata__[0] for name, hint in hints.items()}
    return {name: Option(one.read, one.field or name, one.sent_as or name, one.sent) for name, one in options.items()}


def read_options(given: JobKeywords, declared: type) -> dict[str, Any]:
    """The fields of the options that are set, checked. ConfigError names each that is wrong; TypeError for a name that
    is not declared."""
    check_names(given, declared)
    problems: list[str] = []
    fields: dict[str, Any] = {}
    for name, option in declared_options(declared).items():
        value: Any = given.get(name)
        if value is None:
            continue
        try:
            fields[option.field] = option.read(value)
        except (ConfigError, JobError) as error:
            problems.append(str(error))
        except ValueError as error:
            problems.append(f"{name} is {value!r:.220}; it must be {error}")
    if problems:
        raise ConfigError(problems)
    return fields


class NamedBatch(Protocol):
    """A batch as code passes it around: that of a client, or `context.batch` in a handler."""

    @property
    def id(self) -> str: ...


def batch_id_of(batch: NamedBatch | str | None, name: str = "batch") -> str:
    """ "" without a batch. ConfigError for what is none; `name` is that of the option."""
    id = batch or "" if batch is None or isinstance(batch, str) else getattr(batch, "id", None)
    if not isinstance(id, str):
        raise ConfigError(f"{name} is {batch!r:.220}; it must be a batch, or its id")
    return id


class EnqueueOptions(JobKeywords, total=False):
    """What every method that enqueues takes as keywords: also `batch`, the batch that the job joins, or its id."""

    batch: Annotated[NamedBatch | str | None, Option(batch_id_of, sent_as="batch_id")]


class JobOptions(Struct, frozen=True, omit_defaults=True):
    """The options of a new job, checked. Empty and None mean that the configuration decides. With both, `delay_ms` and
    `at_ms`, it is due at the later of the two."""

    priority: str = ""  # "": chosen by the task or by the extension of the file
    delay_ms: int = 0
    at_ms: int = 0
    max_retries: int | None = None
    timeout_s: float | None = None
    deadline: Moment | None = None
    unique_key: str | None = None
    id: str = ""
    tags: Mapping[str, str] = {}
    batch: str = ""
    named_batch: str = ""  # the `batch_id` of a job that joins no batch
    is_traced: bool = False  # begins a trace, unless it has one:
    trace_id: str = ""
    span_id: str = ""

    def applied(self, job: Job, now_ms: int) -> Job:
        due_ms = max(self.at_ms, now_ms + self.delay_ms) if self.at_ms or self.delay_ms else 0
        trace_id, span_id = self.trace_id, self.span_id
        if self.is_traced and not trace_id:
            trace_id, span_id = new_ids()
        return job.but(
            trace_id=trace_id,
            span_id=span_id,
            max_retries=self.max_retries,
            timeout=self.timeout_s,
            process_at=rfc3339_ms(due_ms) if due_ms else None,
            deadline=self.deadline.text(now_ms) if self.deadline is not None else None,
            batch_id=self.batch or self.named_batch or None,
            unique_key=self.unique_key,
            tags=encoded_tags(self.tags),
        )

    def sent(self) -> dict[str, Any]:
        """The fields of a request for a job that set these options."""
        values = ((option, getattr(self, option.field)) for option in declared_options(EnqueueOptions).values())
        return {one.sent_as: one.sent(value) for one, value in values if value != getattr(_DEFAULTS, one.field)}


_DEFAULTS = JobOptions()


class JobRequest(Struct, frozen=True):
    """A job to enqueue: for a file, or of a type with a payload. `payload` is JSON; None if there is none."""

    options: JobOptions
    type: str = ""
    payload: bytes | None = None
    path: str = ""


def options_of(given: EnqueueOptions) -> JobOptions:
    """The options, checked. ConfigError names each that is wrong; TypeError for one that does not exist."""
    fields = read_options(given, EnqueueOptions)
    if fields.get("delay_ms") and fields.get("at_ms"):
        raise ConfigError("delay and at are both set; give one of them")
    fields["priority"] = fields.get("priority") or getattr(given.get("batch"), "priority", None) or ""
    return JobOptions(**fields)
