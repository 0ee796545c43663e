"""New jobs as the bodies of requests. Sends nothing."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from fileq.client.job_filter import JobFilter
from fileq.client.transport import JobRequest
from fileq.core.errors import ConfigError
from fileq.core.job import rfc3339_ms


def job_fields(request: JobRequest) -> dict[str, Any]:
    """What the server is to enqueue, without the id. Paths are those of the server's machine."""
    options = request.options
    given: dict[str, Any] = {
        "priority": options.priority or None,
        "max_retries": options.max_retries,
        "timeout": options.timeout_s,
        "delay": options.delay_ms / 1000 or None,
        "scheduled_at": rfc3339_ms(options.at_ms) if options.at_ms else None,
        "unique_key": options.unique_key,
        "deadline": rfc3339_ms(options.deadline_ms)
        if options.deadline_ms
        else options.deadline_after_ms / 1000 or None,
        "tags": dict(options.tags) or None,
        "batch_id": options.batch or None,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    if request.path:
        fields["path"] = _path(request.path)
    else:
        fields["type"] = request.type
        if request.payload is not None:
            fields["payload"] = msgspec.Raw(request.payload)
    return fields


def trace_headers(request: JobRequest) -> dict[str, str]:
    """The span of the caller, as W3C Trace Context writes it."""
    options = request.options
    return {"traceparent": f"00-{options.trace_id}-{options.span_id}-01"} if options.trace_id else {}


def filter_query(wanted: JobFilter) -> list[tuple[str, str]]:
    """The parameters of a list of jobs."""
    given = {
        "status": "deferred" if wanted.is_deferred else wanted.state.value if wanted.state is not None else None,
        "type": wanted.type,
        "match": wanted.match,
        "error": wanted.error,
        "since": rfc3339_ms(wanted.since_ms) if wanted.since_ms is not None else None,
        "until": rfc3339_ms(wanted.until_ms) if wanted.until_ms is not None else None,
        "queue": wanted.queue,
        "batch": wanted.batch,
    }
    return [(name, value) for name, value in given.items() if value is not None]


def _path(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise ConfigError(f"the name of {shown!r} is not UTF-8; so a server can't enqueue it") from None
    return os.path.abspath(path)
