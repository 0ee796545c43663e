"""Which trace a job belongs to, and the ids of the spans that are made of it. Pure; knows no tracing library.

A job brings along the ids of the span it was produced in; without them its trace is derived from what the job is, so
that all its attempts share one. The span of an attempt is derived too: the worker that sends it and the process that
runs the handler need not tell each other.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from fileq.core.job import Job

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")


def new_ids() -> tuple[str, str]:
    """A trace that begins, and its first span."""
    return secrets.token_hex(16), secrets.token_hex(8)


def new_span_id() -> str:
    return secrets.token_hex(8)


def parent_of(job: Job) -> tuple[str, str]:
    """The trace of a job and the span it was produced in; "" for one that nobody has named, or not properly."""
    trace_id, span_id = job.trace_id.lower(), job.span_id.lower()
    if _TRACE_ID.fullmatch(trace_id) is None:
        return _hash(16, job.id, job.creation_time), ""
    return trace_id, span_id if _SPAN_ID.fullmatch(span_id) else ""


def attempt_span_id(job: Job, slot: str) -> str:
    """Of one run of this job by this slot."""
    return _hash(8, job.id, slot, str(attempt_of(job)))


def attempt_of(job: Job) -> int:
    """Which run of the job this is, from 1."""
    return job.retries + job.recoveries + 1


def traceparent(trace_id: str, span_id: str) -> str:
    """The ids as W3C's header and OpenTelemetry's environment variable have them; "" if they are not whole."""
    if _TRACE_ID.fullmatch(trace_id) is None or _SPAN_ID.fullmatch(span_id) is None:
        return ""
    return f"00-{trace_id}-{span_id}-01"


def _hash(size: int, *parts: str) -> str:
    text = "\0".join(parts).encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=size).hexdigest()
