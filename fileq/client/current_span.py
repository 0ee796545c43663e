"""The OpenTelemetry span in which a program enqueues, so that its jobs continue its trace. Never imports it."""

from __future__ import annotations

import sys


def current_span() -> tuple[str, str]:
    """Trace id and span id in hex; "" for both without a span, or in a process that has not imported opentelemetry."""
    tracing = sys.modules.get("opentelemetry.trace")
    if tracing is None:
        return "", ""
    span = tracing.get_current_span().get_span_context()
    return (f"{span.trace_id:032x}", f"{span.span_id:016x}") if span.is_valid else ("", "")
