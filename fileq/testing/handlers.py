"""For tests of handlers: run(function, path) calls a handler with the same job and context that a worker gives it.

def test_the_title_is_found(tmp_path):
    assert fileq.testing.run(extract, SAMPLES / "letter.pdf") == {"title": "A letter"}
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Raw
from msgspec.json import encode as encode_json

from fileq.core.batch import BatchFacts
from fileq.core.errors import ConfigError
from fileq.core.job import Job, decode, encode, file_job, typed_job
from fileq.core.units import Duration, seconds
from fileq.files.paths import AnyPath
from fileq.files.status import signature_of
from fileq.handlers import extensions
from fileq.handlers.context import Context
from fileq.handlers.event_loop import EventLoop
from fileq.handlers.extensions import MIDDLEWARE
from fileq.handlers.importing import is_async, unfitness
from fileq.handlers.job_file import NO_FILE, JobFile
from fileq.handlers.outcomes import done
from fileq.handlers.registry import REGISTRY, TaskDefinition, target_of
from fileq.handlers.run import call_through, checked_view, layer_of
from fileq.testing.time_limit import call_within

COROUTINE_GRACE_S = 0.5  # the event loop enforces the timeout; this is for a coroutine that never awaits
LOOP_CLOSE_TIMEOUT_S = 2.0


def run(
    function: Callable[..., Any],
    path: AnyPath | None = None,
    *,
    type: str | None = None,
    payload: Any = None,
    attempt: int = 1,
    timeout: Duration = 300.0,
    priority: str = "low",
    id: str = "",
    safe_open: bool = False,
    cancelled: threading.Event | None = None,
    middleware: Sequence[Callable[..., Any]] | None = None,
    batch: str | BatchFacts | None = None,
) -> Any:
    """Returns what the handler returns and raises what it raises.

    With a `path` the job is about that file; without one it has a `type` and a `payload`. The payload of a task is
    decoded into its type. Coroutines are awaited, also when the caller runs in an event loop. A result that a worker
    would drop causes a warning, that of a task Permanent. With `safe_open`, `job.path` is what a route with that option
    gives. The functions with @fileq.middleware that are imported run around the handler, in the order of their import;
    `middleware` names others instead. Follow-ups and outputs are checked and forgotten. `batch` is the id of the job's
    batch, or the facts for a callback.

    The handler runs in the calling thread, so monkeypatches, fixtures, debuggers and coverage work as usual. After
    `timeout` it is stopped, plain functions too, and TimedOut is raised; docs/handlers.md says what can't be
    stopped. A crash ends the test run, and memory is not limited; `fileq try` has a child process for both."""
    if fault := unfitness(function):
        raise ConfigError(f"{getattr(function, '__qualname__', function)} {fault}")
    timeout_s = _checked(path, attempt, timeout)
    where = b"" if path is None else os.path.abspath(os.fsencode(path))
    job = _job(where, type, payload, priority, id).but(retries=attempt - 1)
    job = job.but(batch_facts=Raw(encode_json(batch))) if isinstance(batch, BatchFacts) else job.but(batch_id=batch)
    file = JobFile(where, os.open(where, os.O_PATH | os.O_CLOEXEC)) if where else None
    given = file.given(is_safe=safe_open) if file is not None else NO_FILE
    decoder = function.payload_decoder if isinstance(function, TaskDefinition) else None
    view = checked_view(decode(encode(job)), given.path, file, decoder)
    types = {one.type: None for one in REGISTRY if one.type is not None}
    flag = cancelled or threading.Event()
    context = Context(view, cancelled=flag, attempt=attempt, timeout_s=timeout_s, types=types)
    loop, awaits = EventLoop(), is_async(function)
    try:
        handler = layer_of(lambda: function(view, context), context, loop, is_async=awaits)
        around = _middleware(middleware)
        grace_s = COROUTINE_GRACE_S if awaits or any(one.is_async for one in around) else 0.0
        result = call_within(lambda: call_through(around, handler, view, context, loop), timeout_s, grace_s=grace_s)
    finally:
        loop.close(LOOP_CLOSE_TIMEOUT_S)
        if file is not None:
            file.close()
    if warning := done(result, is_task=isinstance(function, TaskDefinition)).warning:
        warnings.warn(warning, stacklevel=2)
    return result


def _checked(path: Any, attempt: int, timeout: Duration) -> float:
    """The timeout in seconds."""
    if path is not None and not isinstance(path, str | bytes | os.PathLike):
        raise ConfigError(f"path is {path!r:.120}; it must be the path of a file; a payload is given as payload=…")
    if not (type(attempt) is int and attempt >= 1):
        raise ConfigError(f"attempt is {attempt!r}; it must be a whole number of at least 1")
    try:
        return seconds(timeout)
    except ValueError as error:
        raise ConfigError(f"timeout is {timeout!r:.120}; it must be {error}") from None


def _middleware(given: Sequence[Callable[..., Any]] | None) -> list[extensions.Extension]:
    if given is None:
        given = [one.function for one in extensions.EXTENSIONS.middleware.values()]
    for function in given:
        if fault := unfitness(function, *MIDDLEWARE):
            raise ConfigError(f"{target_of(function)} {fault}")
    return [extensions.extension_of(function) for function in given]


def _job(path: bytes, type: str | None, payload: Any, priority: str, id: str) -> Job:
    now = datetime.now(UTC)
    if not path:
        return typed_job(type or "test", payload, priority=priority, now=now, id=id)
    if type is not None or payload is not None:
        raise TypeError("give a path, or a type and a payload: a job about a file has neither")
    status = os.stat(path)
    signature = signature_of(status)
    return file_job(path, size=status.st_size, priority=priority, now=now, signature=signature, id=id)
