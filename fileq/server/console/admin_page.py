"""Administration: keys, the configuration, and two checks that an operator starts. Only reads.

The text of a new key is in the answer of the API, which the script shows once. It is not kept. The checks are pages of
their own, because they take longer than a page may: nothing runs them but a click.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.commands.admin.fsck import Report, fsck
from fileq.commands.api_keys import SESSION_MARK
from fileq.commands.doctor.check_schedules import check_schedules
from fileq.commands.doctor.check_server import check_server
from fileq.commands.doctor.check_webhooks import check_webhooks
from fileq.config import Config, Loaded
from fileq.config.read import DEFAULT
from fileq.config.show import to_yaml
from fileq.core.api_key import Scope
from fileq.core.errors import FileqError
from fileq.core.finding import Finding, sound, wrong
from fileq.server.api.state_endpoints import show_config
from fileq.server.console.page import PageRequest
from fileq.server.console.rendering import day_of
from fileq.server.problems import ApiProblem

FSCK_S, DOCTOR_S = 120.0, 15.0
DAY_MS = 86_400_000
SCOPES = {
    Scope.READ: "look at every page but Admin, and not into files; enough for a colleague who only looks",
    Scope.ENQUEUE: "add jobs and upload files; alone, it sees only jobs that it added itself",
    Scope.OPERATE: "read, and retry, cancel, run, pause and reprocess",
    Scope.FILES: "with read: also see and download the content of files",
    Scope.ADMIN: "everything, also keys, schedules, webhooks and the configuration",
}
# What a person or a program is to do, with the scopes that it takes.
PRESETS = {
    "Looks only, at every page but Admin": (Scope.READ,),
    "Looks only, also into files": (Scope.READ, Scope.FILES),
    "Operator: also retries, cancels, runs and pauses": (Scope.OPERATE,),
    "Program that adds jobs": (Scope.ENQUEUE,),
    "Admin: everything": (Scope.ADMIN,),
}
LIFETIMES = {1: "in a day", 7: "in 7 days", 30: "in 30 days", 90: "in 90 days", 365: "in a year"}
DEFAULT_DAYS = 90
fsck_runs = threading.Lock()


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
        "presets": PRESETS,
        "lifetimes": lifetimes(request.services.now_ms()),
        "default_days": DEFAULT_DAYS,
        "own_name": own_name(request.caller.name, {key.name for key in found}),
        "login_address": f"{request.origin}{server.base_path}/login",
        "may_admin": request.has(Scope.ADMIN),
    }


def lifetimes(now_ms: int) -> dict[int, str]:
    """How long a key may last, in days, each in words with its last day."""
    return {days: f"{words}, on {day_of(now_ms + days * DAY_MS)}" for days, words in LIFETIMES.items()}


def own_name(caller: str, taken: Collection[str]) -> str:
    """A name for the key of the person who reads the page: as in "root (one-time link)", with a number if there is
    such a key."""
    person = caller.partition(SESSION_MARK)[0].strip()[:50] or "admin"
    numbered = (f"{person} {count}" for count in range(2, len(taken) + 3))
    return next(name for name in (person, *numbered) if name not in taken)


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
