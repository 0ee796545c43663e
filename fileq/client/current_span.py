"""The span in which a program enqueues, so that its jobs continue its trace. Never imports OpenTelemetry."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_of_caller: ContextVar[tuple[str, str]] = ContextVar("fileq_span", default=("", ""))


def current_span() -> tuple[str, str]:
    """Trace id and span id in hex; "" for both without a span, or in a process that has not imported opentelemetry."""
    if (of_caller := _of_caller.get())[0]:
        return of_caller
    tracing = sys.modules.get("opentelemetry.trace")
    if tracing is None:
        return "", ""
    span = tracing.get_current_span().get_span_context()
    return (f"{span.trace_id:032x}", f"{span.span_id:016x}") if span.is_valid else ("", "")


@contextmanager
def span_of_caller(traceparent: str) -> Iterator[None]:
    """In the block, the current span is that of another program, as its header `traceparent` names it. A header of
    another form is ignored."""
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    is_valid = found is not None and found[1].strip("0") and found[2].strip("0")
    token = _of_caller.set((found[1], found[2]) if found is not None and is_valid else ("", ""))
    try:
        yield
    finally:
        _of_caller.reset(token)
