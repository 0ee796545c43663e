"""Administration: keys, the audit, operations, the configuration, and two checks that an operator starts. Only reads.

The text of a new key is in the answer of the API, which the script shows once. It is not kept. The checks are pages of
their own, because they take longer than a page may: nothing runs them but a click.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any

from msgspec import Meta, Struct

from fileq.brokers.protocol import FullBroker
from fileq.commands.admin.fsck import Report, fsck
from fileq.commands.audit_entries import AuditEntry
from fileq.commands.doctor.check_schedules import check_schedules
from fileq.commands.doctor.check_server import check_server
from fileq.commands.doctor.check_webhooks import check_webhooks
from fileq.config import Config, Loaded
from fileq.config.read import DEFAULT
from fileq.config.show import to_yaml
from fileq.core.api_key import Scope
from fileq.core.errors import FileqError
from fileq.core.finding import Finding, sound, wrong
from fileq.server.api.audit_endpoints import AuditQuery, list_audit
from fileq.server.api.state_endpoints import show_config
from fileq.server.console.page import PageRequest
from fileq.server.console.rendering import path_part, query_string
from fileq.server.problems import ApiProblem
from fileq.server.routes import ROUTES

FSCK_S, DOCTOR_S = 120.0, 15.0
SCOPES = {
    Scope.READ: "look at everything, except the content of files",
    Scope.ENQUEUE: "add jobs and upload files; alone, it sees only jobs whose id it knows",
    Scope.OPERATE: "read, and retry, cancel, run, pause and reprocess",
    Scope.FILES: "see and download the content of files; their names need only read",
    Scope.ADMIN: "everything, also keys, schedules, webhooks and the configuration",
}
# The page below which the target of a request is shown, by the first part of its path.
_PAGES = {"jobs": "jobs/", "batches": "batches/", "schedules": "scheduled/edit/", "webhooks": "webhooks/"}
_OVERVIEWS = {
    "queues": "queues",
    "dead": "dead",
    "files": "files",
    "uploads": "files",
    "keys": "admin",
    "operations": "admin/operations",
}
_NOT_NAMES = ("actions", "bulk", "preview")
_ABOUT_JOBS = ("/jobs", "/dead", "/files", "/batches", "/queues", "/operations")
_VERB = "action: "  # how the detail of an action on many jobs begins
fsck_runs = threading.Lock()


class AuditPageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    dry_runs: bool = False


class AuditRow(Struct, frozen=True):
    """An entry in words. `page` shows its target, "" if none does; `jobs` is None if it is not about jobs. `target` is
    what people know: the job, or the target itself. `detail` says which jobs or files were chosen."""

    entry: AuditEntry
    action: str
    page: str
    result: str
    jobs: int | None
    target: str
    detail: str


class CheckQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Without `run` the page only says what the check does."""

    run: bool = False


def keys(request: PageRequest) -> Mapping[str, Any]:
    found, server = request.services.keys.summaries().keys, request.services.config.server
    known = [key for key in found if not key.is_login]
    has_admin = any(Scope.ADMIN in key.scopes and not key.is_expired for key in known)
    has_other_login = bool(server.api_key or server.api_key_file or server.username or server.auth_header)
    return {
        "keys": known,
        "sessions": [key for key in found if key.is_login],
        "lacks_admin": bool(known) and not has_admin and not has_other_login,
        "scopes": SCOPES,
        "may_admin": request.has(Scope.ADMIN),
    }


def audit(request: PageRequest) -> Mapping[str, Any]:
    query: AuditPageQuery = request.query
    found = request.ask(list_audit, AuditQuery(query.limit, query.cursor, query.dry_runs))
    return {
        "entries": [in_words(entry) for entry in found.entries],
        "next_cursor": found.next_cursor,
        "is_later_page": query.cursor is not None,
        "has_dry_runs": query.dry_runs,
    }


def in_words(entry: AuditEntry) -> AuditRow:
    target, page = _target(entry)
    result = "done" if entry.result < 400 else "refused" if entry.result < 500 else "failed"
    verb, _, rest = entry.detail.removeprefix(_VERB).partition(", ")
    is_bulk = entry.detail.startswith(_VERB)
    is_about_jobs = entry.target.startswith(_ABOUT_JOBS) and not entry.target.startswith("/dead/groups/")
    return AuditRow(
        entry,
        action=f"{verb} jobs" if is_bulk else _summaries().get(entry.action, entry.action),
        page=page,
        result=result,
        jobs=entry.count if is_about_jobs and not entry.changes and result == "done" else None,
        target=target,
        detail=rest if is_bulk else entry.detail,
    )


def _target(entry: AuditEntry) -> tuple[str, str]:
    """What was changed, as people call it, and the page that shows it; "" if none does."""
    if entry.action_id:
        return "what became of them", f"/dashboard/admin/operations/{path_part(entry.action_id)}"
    if entry.job_id:
        words = entry.path or " ".join(one for one in (entry.type, entry.job_id) if one)
        return words, f"/dashboard/jobs/{path_part(entry.job_id)}"
    first, _, rest = entry.target.strip("/").partition("/")
    name = rest.partition("/")[0] if first != "jobs" else rest.removesuffix("/retry").removesuffix("/run")
    if entry.target.startswith("/dead/groups/"):
        fingerprint = rest.split("/")[1]
        return f"group {fingerprint}", f"/dashboard/dead{query_string(fingerprint=fingerprint)}"
    if first in _PAGES and name and name not in _NOT_NAMES:
        return name, f"/dashboard/{_PAGES[first]}{path_part(name)}"
    if first in _PAGES:
        return entry.target, f"/dashboard/{_PAGES[first].partition('/')[0]}"
    if first in _OVERVIEWS:
        return name if name and first in ("queues", "keys") else entry.target, f"/dashboard/{_OVERVIEWS[first]}"
    return entry.target, ""


@cache
def _summaries() -> dict[str, str]:
    """What each endpoint does, by its name in the audit; without what a caller of it has to know."""
    return {route.name: route.summary.partition("; ")[0] for route in ROUTES}


def configuration(request: PageRequest) -> Mapping[str, Any]:
    """Without the settings of the brokers that this server does not use."""
    unused = {"sqlite", "redis"} - {request.services.broker.kind}
    config = {name: value for name, value in request.ask(show_config).config.items() if name not in unused}
    return {"sections": sections_of(config)}


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
