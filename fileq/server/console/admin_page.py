"""Administration: keys, the audit, operations, the configuration, and two checks that an operator starts. Only reads.

The text of a new key is in the answer of the API, which the script shows once. It is not kept. The checks are pages of
their own, because they take longer than a page may: nothing runs them but a click.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from fileq.brokers.protocol import FullBroker
from fileq.commands.admin.fsck import Report, fsck
from fileq.commands.doctor.check_schedules import check_schedules
from fileq.commands.doctor.check_server import check_server
from fileq.commands.doctor.check_webhooks import check_webhooks
from fileq.config import Config, Loaded
from fileq.config.read import DEFAULT
from fileq.config.show import to_yaml
from fileq.core.api_key import Scope
from fileq.core.errors import FileqError
from fileq.core.finding import Finding, sound, wrong
from fileq.server.api.action_endpoints import list_operations
from fileq.server.api.audit_endpoints import AuditQuery, list_audit
from fileq.server.api.state_endpoints import show_config
from fileq.server.console.page import PageRequest
from fileq.server.problems import ApiProblem

FSCK_S, DOCTOR_S = 120.0, 15.0
fsck_runs = threading.Lock()


class AuditPageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=500)] | None = None


class CheckQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Without `run` the page only says what the check does."""

    run: bool = False


def keys(request: PageRequest) -> Mapping[str, Any]:
    found = request.services.keys.summaries().keys
    return {
        "keys": [key for key in found if not key.is_login],
        "sessions": [key for key in found if key.is_login],
        "scopes": tuple(Scope),
        "may_admin": request.has(Scope.ADMIN),
    }


def audit(request: PageRequest) -> Mapping[str, Any]:
    query: AuditPageQuery = request.query
    found = request.ask(list_audit, AuditQuery(query.limit, query.cursor))
    return {"entries": found.entries, "next_cursor": found.next_cursor, "is_later_page": query.cursor is not None}


def operations(request: PageRequest) -> Mapping[str, Any]:
    return {"operations": request.ask(list_operations).operations, "may_operate": request.has(Scope.OPERATE)}


def configuration(request: PageRequest) -> Mapping[str, Any]:
    return {"sections": sections_of(request.ask(show_config).config)}


def sections_of(config: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """The settings by section, each with its dotted path and its value as YAML. Those of no section come first."""
    found: dict[str, list[tuple[str, str]]] = {"": []}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            found[name] = list(_settings(value, f"{name}."))
        else:
            found[""].append((name, to_yaml(value)))
    return {name: rows for name, rows in found.items() if rows}


def _settings(values: Mapping[str, Any], inside: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, f"{inside}{name}.")
        else:
            yield f"{inside}{name}", to_yaml(value)


def consistency(request: PageRequest) -> Mapping[str, Any]:
    """One check at a time: each looks at every job."""
    if not request.query.run:
        return {"report": None}
    if not fsck_runs.acquire(blocking=False):
        raise ApiProblem("conflict", "a check is running already; try again when it has ended")
    try:
        report: Report = fsck(request.services.broker, request.services.config)
    finally:
        fsck_runs.release()
    return {"report": request.shown(report)}


def environment(request: PageRequest) -> Mapping[str, Any]:
    """The checks of `fileq doctor` that concern a server that runs. Those of workers need their machines."""
    if not request.query.run:
        return {"findings": None}
    services = request.services
    return {"findings": list(server_findings(services.config, services.broker))}


def server_findings(config: Config, broker: FullBroker) -> Iterator[Finding]:
    loaded = Loaded(config, defaultdict(lambda: DEFAULT))  # where a setting came from is not known here
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "broker": lambda: [sound("broker", f"{broker.kind}, {broker.where}"), *broker.examine()],
        "schedules": lambda: check_schedules(config),
        "webhooks": lambda: check_webhooks(loaded, lambda: broker),
        "server": lambda: check_server(loaded, lambda: broker),
    }
    for name, check in checks.items():
        try:
            yield from check()
        except (OSError, FileqError) as error:
            yield wrong(name, str(error), "'fileq doctor serve' checks it on this machine")
