"""A new batch as a program gives it, checked, with its callbacks as requests for jobs. Reaches no broker."""

from __future__ import annotations

import re
import secrets
from typing import Any, TypeAlias, TypedDict

from msgspec import UNSET
from msgspec.structs import replace

from fileq.client.job_options import JobOptions, NamedBatch, batch_id_of, options_of
from fileq.client.task_call import TaskCall, encoded_payload, task_named
from fileq.client.transport import BatchRequest, CallbackRequest, JobRequest
from fileq.core.batch import CallbackKind
from fileq.core.errors import ConfigError
from fileq.handlers.registry import TaskDefinition

CallbackTask: TypeAlias = TaskDefinition[Any, Any] | TaskCall[Any, Any] | str
NAME_MAX = 80  # characters; the id has more, and the ids of callbacks more again
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_MAX}}}")
_NOT_FOR_CALLBACKS = ("id", "delay", "at", "batch", "unique_key")


class BatchKeywords(TypedDict, total=False):
    """What Client.batch() takes as keywords."""

    allow_failures: bool
    then: CallbackTask | None
    catch: CallbackTask | None
    finally_: CallbackTask | None
    parent: NamedBatch | str | None
    priority: str


def batch_request(
    name: str,
    allow_failures: bool,
    then: CallbackTask | None,
    catch: CallbackTask | None,
    finally_: CallbackTask | None,
    parent: NamedBatch | str | None,
    priority: str,
    id: str = "",
) -> BatchRequest:
    """ConfigError names everything that is wrong. Without an `id` the batch gets a new one."""
    problems: list[str] = []
    if name and not _NAME.fullmatch(name):
        problems.append(f"the name of the batch is {name!r:.120}; it must match {_NAME.pattern}")
    id = id or new_batch_id(name)
    callbacks = []
    given = {CallbackKind.THEN: then, CallbackKind.CATCH: catch, CallbackKind.FINALLY: finally_}
    for kind, task in given.items():
        if task is None:
            continue
        try:
            callbacks.append(CallbackRequest(kind, _callback(task, priority)))
        except (ConfigError, TypeError) as error:
            problems += (f"{kind}: {text}" for text in getattr(error, "problems", (str(error),)))
    if problems:
        raise ConfigError(problems)
    return BatchRequest(id, name, batch_id_of(parent), allow_failures, priority, tuple(callbacks))


def new_batch_id(name: str = "") -> str:
    """Different at each call, so that a name can be used again."""
    return f"{name or 'batch'}-{secrets.token_hex(6)}"


def _callback(task: CallbackTask, priority: str) -> JobRequest:
    """The job of a callback. Its payload is what the caller gave; the facts of the batch come beside it."""
    call = task if isinstance(task, TaskCall) else TaskCall(task)
    definition = task_named(call.task)
    options = _options(call, definition, priority)
    payload = encoded_payload(call.payload, call.name) if call.payload is not UNSET else None
    if definition is not None:
        definition.checked_payload(payload if payload is not None else b"null")
    return JobRequest(options, call.name, payload)


def _options(call: TaskCall[Any, Any], definition: TaskDefinition[Any, Any] | None, priority: str) -> JobOptions:
    if wrong := [name for name in _NOT_FOR_CALLBACKS if call.options.get(name)]:
        raise ConfigError(f"{wrong[0]} can't be given: a callback has an id of its own and is enqueued when it is due")
    options = options_of(call.options)
    own = definition.priority if definition is not None else ""
    return replace(options, priority=options.priority or own or priority)
