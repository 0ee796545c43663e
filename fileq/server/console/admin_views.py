"""Administration: keys, the configuration, two checks that an operator starts, webhooks and the audit. Only reads.

The text of a new key, or the secret of a webhook, is in the answer of the API, which the script shows once. It is not
kept, and no view has it. The checks are views of their own, because they take longer than a view may: nothing runs them
but a click.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.commands.admin.fsck.check import fsck
from fileq.commands.api_keys import SESSION_MARK
from fileq.commands.audit_entries import AuditChange, AuditEntry
from fileq.commands.server_checks import check_schedules, check_server, check_webhooks
from fileq.commands.webhooks import deliveries, latest_deliveries
from fileq.config import Config, Loaded
from fileq.config.read import DEFAULT
from fileq.config.show import to_yaml
from fileq.core.api_key import Scope
from fileq.core.errors import FileqError
from fileq.core.finding import Finding, sound, wrong
from fileq.core.webhook import WEBHOOK_EVENTS
from fileq.server.api.access_endpoints import AuditQuery, list_audit
from fileq.server.api.definition_endpoints import list_webhooks
from fileq.server.api.queue_endpoints import show_config
from fileq.server.console.view import ViewList, ViewRequest, day_of, path_part, query_string
from fileq.server.problems import ApiProblem
from fileq.server.route import NoQuery
from fileq.server.routes import ROUTES

VIEWS = ViewList()
LATEST = 3


class DeliveryLogQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


@VIEWS.add("/webhooks", "Webhooks", "webhooks.html", is_scan=True, letter="h")
def webhooks(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    found = request.ask(list_webhooks)
    latest = latest_deliveries(request.broker, request.config, LATEST) if found.webhooks else {}
    return {
        "rows": [(one, latest.get(one.name, ())) for one in found.webhooks],
        "problems": found.problems,
        "events": WEBHOOK_EVENTS,
    }


@VIEWS.add("/webhooks/{name:path}", "Webhook", "webhook.html", is_scan=True)
def webhook(request: ViewRequest[DeliveryLogQuery]) -> Mapping[str, Any]:
    name, query = request.params["name"], request.query
    known = {one.name: one for one in request.ask(list_webhooks).webhooks}
    found = deliveries(request.broker, request.config, name, query.limit, is_known=name in known)
    return {"name": name, "webhook": known.get(name), "deliveries": request.shown(found).deliveries}


# Keys, the configuration and the checks

FSCK_S, DOCTOR_S = 120.0, 15.0
DAY_MS = 86_400_000
ADMIN: Mapping[str, Any] = {"scopes": (Scope.ADMIN,), "changes_with": ""}
SCOPES = {
    Scope.READ: "view everything except Admin and file contents",
    Scope.ENQUEUE: "add jobs and upload files; on its own, sees only its own jobs",
    Scope.OPERATE: "read, plus retry, cancel, run, pause and reprocess",
    Scope.FILES: "with read: view and download files",
    Scope.ADMIN: "everything, including keys, schedules, webhooks and configuration",
}
# What a person or a program is to do, with the scopes that it takes.
PRESETS = {
    "Viewer (everything except Admin)": (Scope.READ,),
    "Viewer, including file contents": (Scope.READ, Scope.FILES),
    "Operator (view, retry, cancel, run, pause)": (Scope.OPERATE,),
    "Program that enqueues jobs": (Scope.ENQUEUE,),
    "Admin (everything)": (Scope.ADMIN,),
}
LIFETIMES = {1: "in a day", 7: "in 7 days", 30: "in 30 days", 90: "in 90 days", 365: "in a year"}
DEFAULT_DAYS = 90
fsck_runs = threading.Lock()


class CheckQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Without `run` the view only says what the check does."""

    run: bool = False


@VIEWS.add("/admin", "Admin", "admin_keys.html", letter="a", **ADMIN)
def keys(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    found, server = request.services.keys.summaries().keys, request.config.server
    known = [key for key in found if not key.is_login]
    has_admin = any(Scope.ADMIN in key.scopes and not key.is_expired for key in known)
    has_other_login = bool(server.api_key or server.api_key_file or server.username or server.auth_header)
    return {
        "keys": known,
        "sessions": [key for key in found if key.is_login],
        "lacks_admin": bool(known) and not has_admin and not has_other_login,
        "scopes": SCOPES,
        "presets": PRESETS,
        "lifetimes": lifetimes(request.services.now_ms()),
        "default_days": DEFAULT_DAYS,
        "own_name": own_name(request.caller.name, {key.name for key in found}),
        "login_address": f"{request.origin}{server.base_path}/login",
    }


def lifetimes(now_ms: int) -> dict[int, str]:
    """How long a key may last, in days, each in words with its last day."""
    return {days: f"{words}, on {day_of(now_ms + days * DAY_MS)}" for days, words in LIFETIMES.items()}


def own_name(caller: str, taken: Collection[str]) -> str:
    """A name for the key of the person who reads the view: as in "root (one-time link)", with a number if there is
    such a key."""
    person = caller.partition(SESSION_MARK)[0].strip()[:50] or "admin"
    numbered = (f"{person} {count}" for count in range(2, len(taken) + 3))
    return next(name for name in (person, *numbered) if name not in taken)


@VIEWS.add("/admin/configuration", "Configuration", "admin_configuration.html", **ADMIN)
def configuration(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    """Without the settings of the brokers that this server does not use."""
    unused = {"sqlite", "redis"} - {request.broker.kind}
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


@VIEWS.add("/admin/consistency", "Consistency", "admin_consistency.html", timeout_s=FSCK_S, **ADMIN)
def consistency(request: ViewRequest[CheckQuery]) -> Mapping[str, Any]:
    """One check at a time: each looks at every job."""
    if not request.query.run:
        return {"report": None}
    if not fsck_runs.acquire(blocking=False):
        raise ApiProblem("conflict", "a check is already running; try again when it has finished")
    try:
        return {"report": request.shown(fsck(request.broker, request.config))}
    finally:
        fsck_runs.release()


@VIEWS.add("/admin/environment", "Environment", "admin_environment.html", timeout_s=DOCTOR_S, **ADMIN)
def environment(request: ViewRequest[CheckQuery]) -> Mapping[str, Any]:
    """The checks of `fileq doctor` that concern a server that runs. Those of workers need their machines."""
    if not request.query.run:
        return {"findings": None}
    return {"findings": list(_findings(request.config, request.broker))}


def _findings(config: Config, broker: FullBroker) -> Iterator[Finding]:
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


# The audit in words: who did what, and the view that shows what it was done to. Only reads.


# The view of a target, by the first part of its path. One with a slash at its end has a view for each name.
_VIEWS = {
    "jobs": "jobs/",
    "batches": "batches/",
    "schedules": "scheduled/edit/",
    "webhooks": "webhooks/",
    "queues": "queues",
    "dead": "dead",
    "files": "files",
    "uploads": "files",
    "operations": "admin/operations",
}
_NOT_NAMES = ("actions", "bulk", "preview")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z| UTC)")
_ABOUT_JOBS = ("/jobs", "/dead", "/files", "/batches", "/queues", "/operations")
_SCHEDULES = "/schedules/"
_GROUPS = "/dead/groups/"  # the detail of such an entry is the cause
_VERB = "action: "  # how the detail of an action on many jobs begins
# What people call it, if that is not what the documentation of the API says.
_WORDS = {"failed_login": "failed login", "create_login_link": "create a login link"}
_HINTS = {"upload_file": "enqueued automatically; see the file's page"}
# The same for a request that may make something or change it: the words for each.
_MADE_OR_CHANGED = {
    "put_schedule": ("add a schedule", "change a schedule"),
    "put_acknowledgement": ("acknowledge a cause", "acknowledge a cause again"),
}


class AuditViewQuery(AuditQuery, frozen=True, forbid_unknown_fields=True):
    """`mine`: only what this caller did, also before its session got a name."""

    dry_runs: bool = False
    mine: bool = False


class AuditRow(Struct, frozen=True):
    """An entry in words. `view` shows its target, "" if none does; `jobs` is None if it is not about jobs. `target` is
    what people know: the job, or the target itself. `detail` says which jobs or files were chosen. `changes` are those
    of the entry, with times as people read them."""

    entry: AuditEntry
    action: str
    view: str
    result: str
    jobs: int | None
    target: str
    detail: str
    changes: tuple[AuditChange, ...]


@VIEWS.add("/admin/audit", "Audit", "admin_audit.html", is_scan=True, **ADMIN)
def audit(request: ViewRequest[AuditViewQuery]) -> Mapping[str, Any]:
    query = request.query
    found = request.ask(list_audit, replace(query, caller_id=request.caller.id if query.mine else None))
    flags = {name: "true" if getattr(query, name) else "" for name in ("dry_runs", "mine")}
    chosen = flags | {"who": query.who or "", "action": query.action or ""}
    caller = request.caller
    own = caller.name if caller.id.startswith("user:") else f"the key {caller.name}"
    return {
        "entries": [in_words(entry) for entry in found.entries],
        "next_cursor": found.next_cursor,
        "chosen": chosen,
        # Whose entries are the own ones: a person may have several keys, and an entry is about one of them.
        "mine_words": "this session" if caller.is_login else own,
        "action_word": summaries().get(query.action or "", query.action),
    }


def in_words(entry: AuditEntry) -> AuditRow:
    target, view = _target(entry)
    result = "done" if entry.result < 400 else "refused" if entry.result < 500 else "failed"
    verb, _, rest = entry.detail.removeprefix(_VERB).partition(", ")
    is_bulk = entry.detail.startswith(_VERB)
    is_about_jobs = entry.target.startswith(_ABOUT_JOBS) and not entry.target.startswith(_GROUPS)
    is_counted = bool(entry.job_id) or (is_about_jobs and not entry.changes)
    action = f"{verb} jobs" if is_bulk else _action(entry)
    jobs = entry.count if is_counted and result == "done" else None
    detail = rest if is_bulk else entry.detail * (entry.detail != target) or _HINTS.get(entry.action, "")
    changes = tuple(AuditChange(one.field, _time(one.old), _time(one.new)) for one in entry.changes)
    return AuditRow(entry, action, view, result, jobs, target, detail, changes)


def _time(value: str | None) -> str | None:
    """A value that is a time as other views show it; every other value as it is."""
    found = _TIME.fullmatch(value or "")
    return f"{found[1]} {found[2]} UTC" if found else value


def _action(entry: AuditEntry) -> str:
    if entry.action in _MADE_OR_CHANGED and entry.result < 400:
        made, changed = _MADE_OR_CHANGED[entry.action]
        is_change = any(one.old is not None for one in entry.changes) or not entry.changes
        return changed if is_change else made
    return summaries().get(entry.action, entry.action)


def _target(entry: AuditEntry) -> tuple[str, str]:
    """What was changed, as people call it, and the view that shows it; "" if none does."""
    if entry.action_id:
        return "results", f"/dashboard/admin/operations/{path_part(entry.action_id)}"
    if entry.job_id:
        if entry.target.startswith(_SCHEDULES):
            words = f"a job of {entry.target.removeprefix(_SCHEDULES).removesuffix('/run')}"
        else:
            words = entry.path or " ".join(one for one in (entry.type, entry.job_id) if one)
        return words, f"/dashboard/jobs/{path_part(entry.job_id)}"
    if entry.path:
        return entry.path, f"/dashboard/files/trace{query_string(path=entry.path)}"
    first, _, rest = entry.target.strip("/").partition("/")
    name = rest.partition("/")[0] if first != "jobs" else rest.removesuffix("/retry").removesuffix("/run")
    if first == "whoami":
        return "own session", "/dashboard/admin"
    if entry.target.startswith(_GROUPS):
        fingerprint = rest.split("/")[1]
        return entry.detail or f"group {fingerprint}", f"/dashboard/dead{query_string(fingerprint=fingerprint)}"
    if first == "keys":
        names = (one.new or one.old for one in entry.changes if one.field == "name")
        return next(names, None) or name or "keys", "/dashboard/admin"
    view = _VIEWS.get(first, "")
    if view.endswith("/") and name and name not in _NOT_NAMES:
        return name, f"/dashboard/{view}{path_part(name)}"
    words = name if name and first == "queues" else entry.target
    return words, f"/dashboard/{view.partition('/')[0] if view.endswith('/') else view}" if view else ""


@cache
def summaries() -> dict[str, str]:
    """What each endpoint does, by its name in the audit; without what a caller of it has to know."""
    return {route.name: route.summary.partition("; ")[0] for route in ROUTES} | _WORDS
