"""The trace of a job and the ids of its spans. Does no I/O and knows no tracing library.

A job carries the ids of the span it was produced in. Without them, its trace id is derived from the job's id and
creation time, so that all its attempts share one trace. The span id of an attempt is derived too: the worker that
exports the span and the process that runs the handler compute the same id without a message.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from fileq.core.job import Job

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")


def new_ids() -> tuple[str, str]:
    return secrets.token_hex(16), secrets.token_hex(8)


def new_span_id() -> str:
    return secrets.token_hex(8)


def parent_of(job: Job) -> tuple[str, str]:
    """The ids of the job's trace and of the span it was produced in; the latter is "" if missing or malformed."""
    trace_id, span_id = job.trace_id.lower(), job.span_id.lower()
    if _TRACE_ID.fullmatch(trace_id) is None:
        return _hash(16, job.id, job.creation_time), ""
    return trace_id, span_id if _SPAN_ID.fullmatch(span_id) else ""


def attempt_span_id(job: Job, slot: str) -> str:
    return _hash(8, job.id, slot, str(attempt_of(job)))


def attempt_of(job: Job) -> int:
    """The number of the current attempt, from 1."""
    return job.retries + job.recoveries + 1


def traceparent(trace_id: str, span_id: str) -> str:
    """The ids in W3C's `traceparent` format; "" if one is malformed."""
    if _TRACE_ID.fullmatch(trace_id) is None or _SPAN_ID.fullmatch(span_id) is None:
        return ""
    return f"00-{trace_id}-{span_id}-01"


def _hash(size: int, *parts: str) -> str:
    text = "\0".join(parts).encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=size).hexdigest()
