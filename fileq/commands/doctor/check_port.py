"""Checks that the port of /metrics, /healthz and /readyz is free, or served by a fileq already."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from fileq.config import Loaded
from fileq.config.http_settings import host_here
from fileq.core.finding import Finding, sound, unknown, wrong

_TIMEOUT_S = 1.0


def check_port(loaded: Loaded) -> Iterator[Finding]:
    bind, port = loaded.config.observability.metrics_bind, loaded.config.observability.metrics_port
    if port == 0:
        yield sound("metrics port", "any free port")
        return
    error = bind_error(bind, port)
    yield sound("metrics port", f"{port} on {bind} is free") if error is None else _refused(loaded, bind, port, error)


def bind_error(bind: str, port: int) -> OSError | None:
    """Why this address can't be listened on; None if it can."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            trial.bind((bind, port))
            trial.listen()
    except OSError as error:
        return error
    return None


def _refused(loaded: Loaded, bind: str, port: int, error: OSError) -> Finding:
    if error.errno == errno.EADDRINUSE:
        if answers_health(bind, port, "Server", "fileq"):
            return sound("metrics port", f"{port} on {bind} is served by a running fileq")
        if not loaded.is_set("observability.metrics_port"):
            return unknown("metrics port", f"{port} on {bind} is in use; a free port is chosen at start")
    reason = error.strerror or str(error)
    return wrong("metrics port", f"{port} on {bind}: {reason}", "set observability.metrics_port to another, or to 0")


def answers_health(bind: str, port: int, header: str, start: str = "") -> bool:
    """Whether a server there answers /healthz with this header, whose value begins like this."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host_here(bind), port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        found = connection.getresponse().getheader(header)
        return found is not None and found.startswith(start)
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
