"""The settings of metrics, logs and traces."""

from __future__ import annotations

from typing import Annotated, Literal

from fileq.config.section import Section
from fileq.config.value_types import OTLP_URL, Filled, Port, Seconds


class TracingSettings(Section, frozen=True):
    enabled: Annotated[bool, "send spans"] = False
    endpoint: Annotated[str, OTLP_URL, "OTLP collector: http(s)://… or grpc://…"] = ""


class ObservabilitySettings(Section, frozen=True):
    metrics_port: Annotated[Port, "port of /metrics, /healthz and /readyz; 0 = any free port"] = 9090
    metrics_bind: Annotated[
        Filled, "address that the port listens on; it has no password: every host that reaches it can read it"
    ] = "0.0.0.0"
    log_level: Annotated[Literal["debug", "info", "warn", "error"], "debug, info, warn or error"] = "info"
    log_format: Annotated[Literal["auto", "console", "json"], "auto: console on a terminal, else json"] = "auto"
    stats_retention: Annotated[Seconds, "how long hourly counters are kept"] = 30 * 86_400.0
    tracing: Annotated[TracingSettings, "OpenTelemetry"] = TracingSettings()
