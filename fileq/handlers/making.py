"""Collects what a handler leaves behind besides its result: follow-ups and the files that it made.

Everything is checked when the handler asks for it, so a mistake is an exception in the handler, and the broker is never
given a follow-up that it would refuse. Nothing here reaches a broker: the outcome carries it to the worker, which puts
it on the settlement. A kill -9 leaves nothing of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar

import msgspec
from msgspec.structs import replace

from fileq.core.errors import JobError
from fileq.core.job import (
    COUNT_MAX,
    MAX_NESTING,
    TOO_NESTED,
    UNIQUE_KEY_LENGTH,
    checked_id,
    is_nested_deeper,
    parse_time,
    rfc3339,
)
from fileq.core.outcome import (
    FOLLOW_UPS_MAX,
    FOLLOW_UPS_MAX_BYTES,
    OUTPUTS_MAX,
    FollowUpRequest,
    Made,
    Output,
    follow_up_id,
)
from fileq.core.own_jobs import check_id, check_type
from fileq.core.units import LONGEST_S, parse_duration
from fileq.files.version import signature_of
from fileq.handlers.file_check import check_file
from fileq.handlers.outcomes import number_outside_json

LONGEST_TYPE = 100

T = TypeVar("T", FollowUpRequest, Output)


class NamedTask(Protocol):
    """A task as code passes it around. Its name is the type of its jobs."""

    @property
    def name(self) -> str: ...


Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Duration: TypeAlias = float | str  # seconds, or a text such as "5m"
Moment: TypeAlias = datetime | str  # aware, or a text such as "2026-11-16T12:00:00Z"


class FollowUpOptions(TypedDict, total=False):
    """The options of a follow-up. `delay` counts from the end of the job, `timeout` and `max_retries` are those of the
    new job instead of its route's, and after its `deadline` it is not started any more."""

    priority: str
    delay: Duration
    at: Moment | None
    id: str
    unique_key: str
    max_retries: int | None
    timeout: Duration | None
    deadline: Moment | None


class Making:
    """Of one attempt at the job `parent_id`. Without `roots`, as in a test of a handler, a file may be anywhere.
    Without `queues` every priority is accepted."""

    def __init__(self, parent_id: str, roots: Sequence[bytes], queues: Sequence[str]) -> None:
        self._parent_id = parent_id
        self._roots = roots
        self._queues = queues
        self._requests: list[FollowUpRequest] = []
        self._outputs: dict[bytes, Output] = {}
        self._size = 0
        self._is_closed = False

    def add_job(self, task: NamedTask | str, payload: Any, options: FollowUpOptions, *, joins: bool = False) -> str:
        """Returns the id of the job. A task may have a priority of its own. `joins`: it becomes a member of the batch
        of the job that it follows."""
        if not options.get("priority"):
            options["priority"] = getattr(task, "priority", "") or ""
        return self._add(options, type=_type_of(task), payload=_encoded(payload), joins=joins)

    def add_file(self, path: Path, options: FollowUpOptions, *, joins: bool = False) -> str:
        where = _absolute(path)
        if self._roots and (refused := check_file(where, self._roots)) is not None:
            raise JobError(f"{os.fsdecode(where)!r} can't be enqueued: {refused.error}")
        status = _file_status(where, "enqueued")
        about = {"path": where, "size": status.st_size, "signature": signature_of(status)}
        return self._add(options, **about, joins=joins)

    def add_output(self, path: Path) -> None:
        self._check_open()
        where = _absolute(path)
        if where not in self._outputs and len(self._outputs) >= OUTPUTS_MAX:
            raise JobError(f"a job can have {OUTPUTS_MAX} outputs; {os.fsdecode(where)!r} is one more")
        status = _file_status(where, "an output")
        self._outputs[where] = Output(where, status.st_size, signature_of(status))

    def finish(self) -> Made | None:
        """What was made, each file as it is now; None if that is nothing. Later calls of the handler are refused."""
        self._is_closed = True
        if not self._requests and not self._outputs:
            return None
        return Made(tuple(map(_as_it_is, self._requests)), tuple(map(_as_it_is, self._outputs.values())))

    def _add(self, options: FollowUpOptions, **subject: Any) -> str:
        self._check_open()
        if len(self._requests) >= FOLLOW_UPS_MAX:
            raise JobError(f"a job can enqueue {FOLLOW_UPS_MAX} follow-ups; let one of them enqueue the others")
        request = FollowUpRequest(**subject, **self._checked(**options))
        size = self._size + len(msgspec.msgpack.encode(request))
        if size > FOLLOW_UPS_MAX_BYTES:
            raise JobError(
                f"the follow-ups of this job have {size} bytes; {FOLLOW_UPS_MAX_BYTES} are allowed together: "
                "put the data into files and their paths into the payloads"
            )
        self._size = size
        self._requests.append(request)
        return request.id

    def _checked(
        self,
        *,
        priority: str = "",
        delay: Duration = 0,
        at: Moment | None = None,
        id: str = "",
        unique_key: str = "",
        max_retries: int | None = None,
        timeout: Duration | None = None,
        deadline: Moment | None = None,
    ) -> dict[str, Any]:
        if priority and self._queues and priority not in self._queues:
            raise JobError(f"priority is {priority!r}; it must be one of {', '.join(self._queues)}")
        if unique_key and not (len(unique_key) <= UNIQUE_KEY_LENGTH and unique_key.isprintable()):
            raise JobError(f"unique_key is {unique_key!r}; use up to {UNIQUE_KEY_LENGTH} printable characters")
        if max_retries is not None and not 0 <= max_retries <= COUNT_MAX:
            raise JobError(f"max_retries is {max_retries}; it must be at least 0")
        check_id(id)
        return {
            "id": checked_id(id) if id else follow_up_id(self._parent_id, len(self._requests) + 1),
            "priority": priority,
            "delay_ms": round(_seconds(delay, "delay") * 1000),
            "at_ms": round(_moment(at, "at").timestamp() * 1000) if at is not None else 0,
            "unique_key": unique_key or None,
            "max_retries": max_retries,
            "timeout_s": _seconds(timeout, "timeout") if timeout is not None else None,
            "deadline": rfc3339(_moment(deadline, "deadline")) if deadline is not None else None,
        }

    def _check_open(self) -> None:
        if self._is_closed:
            raise JobError("the attempt has ended; add follow-ups and outputs before the handler returns")


def _type_of(task: NamedTask | str) -> str:
    name = task if isinstance(task, str) else getattr(task, "name", None) or getattr(task, "type", None)
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_TYPE or not name.isprintable():
        raise JobError(f"{task!r:.200} is no type; give a task, or the type of a route as text")
    check_type(name)
    return name


def _encoded(payload: Any) -> bytes:
    if payload is None:
        return b""
    try:
        encoded = msgspec.json.encode(payload)
        number = number_outside_json(msgspec.to_builtins(payload)) if b"null" in encoded else None
    except Exception as error:
        raise JobError(f"the payload is not JSON: {error}") from error
    if number is not None:
        raise JobError(f"the payload contains {number}, which JSON does not have")
    if is_nested_deeper(encoded, MAX_NESTING):
        raise JobError(f"the payload {TOO_NESTED}")
    return encoded


def _absolute(path: Path) -> bytes:
    where = os.fsencode(path)
    if not where or b"\0" in where:
        raise JobError(f"{path!r} is not a path: it is empty or contains a null byte")
    return os.path.abspath(where)


def _file_status(where: bytes, what: str) -> os.stat_result:
    try:
        status = os.stat(where)
    except OSError as error:
        raise JobError(f"{os.fsdecode(where)!r} can't be {what}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise JobError(f"{os.fsdecode(where)!r} can't be {what}: it is not a regular file")
    return status


def _as_it_is(value: T) -> T:
    """With the size and the signature that its file has now. A file that is gone keeps those it had."""
    if not value.path:
        return value
    try:
        status = os.stat(value.path)
    except OSError:
        return value
    return replace(value, size=status.st_size, signature=signature_of(status))


def _seconds(value: Duration, name: str) -> float:
    try:
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError) as error:
        raise JobError(f"{name} is {value!r}; it must be {error}") from None
    if not 0 <= seconds <= LONGEST_S:
        raise JobError(f"{name} is {value!r}; it must be a number of seconds from 0 on, or a text such as 5m")
    return seconds


def _moment(value: Moment, name: str) -> datetime:
    moment = parse_time(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise JobError(f"{name} is {value!r}; it must be a datetime, or a text such as 2026-11-16T12:00:00Z")
    if moment.tzinfo is None:
        raise JobError(f"{name} is {value!r} without a time zone; give one, such as datetime.now(UTC)")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise JobError(f"{name} is {value!r}; it must be in the years 1 to 9999 of UTC") from None
