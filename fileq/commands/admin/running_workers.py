"""The running workers: lists them, requests that they close their circuit breakers, and compares what they have loaded
with the files here. Imports no handler: decorated ones are known only from what workers report."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from msgspec import Struct

from fileq.brokers.catalog import Document
from fileq.brokers.lost_workers import LOST_WORKERS, LostWorker, lost_workers_in
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Overview, WorkerInfo, WorkerView
from fileq.config import Config, Loaded
from fileq.core.documented import means
from fileq.core.errors import ConfigError
from fileq.core.job import stamp
from fileq.core.text import did_you_mean, printable
from fileq.queries.documents import WorkerDocument, worker_documents


class WorkerList(Struct, frozen=True):
    at: Annotated[str, means("current time on the broker's clock (RFC 3339)")]
    workers: Annotated[tuple[WorkerDocument, ...], means("one object per process")]
    slots: Annotated[int, means("in all processes")]
    busy: Annotated[int, means("in all processes")]
    lost: Annotated[tuple[LostWorker, ...], means("processes that died in the last hour, newest first")] = ()


class ReportedBreaker(Struct, frozen=True):
    """A breaker that a worker reports as open or half-open."""

    host: str
    pid: int
    route: str
    state: str
    error: str


class BreakerReset(Struct, frozen=True):
    route: Annotated[str, means("the route whose breakers are reset; empty for all routes")]
    open: Annotated[tuple[ReportedBreaker, ...], means("open breakers of that route, as workers report them")]
    within_s: Annotated[float, means("time until every worker has reset its breakers")]
    is_configured: Annotated[bool, means("the command's configuration has this route")]


def reset_breaker(broker: FullBroker, config: Config, route: str) -> BreakerReset:
    """Requests that all workers close the breakers of this route, or with "" of all routes, at their next renewal.

    ConfigError for a name that no worker reports and that the configuration does not have."""
    reported = tuple(
        ReportedBreaker(process.host, process.pid, one.route, one.state, one.error)
        for process in workers(broker).workers
        for one in process.breakers
    )
    check_route(route, config, [one.route for one in reported])
    broker.reset_breaker(route)
    wanted = tuple(one for one in reported if route in ("", one.route))
    return BreakerReset(route, wanted, config.worker.heartbeat_ttl / 3, is_configured(route, config))


def workers(broker: FullBroker) -> WorkerList:
    """Two round trips."""
    return workers_in(broker.overview(1), broker.documents(LOST_WORKERS.kind))


def workers_in(overview: Overview, documents: Mapping[str, Document]) -> WorkerList:
    """The processes of this overview, and those that died: `documents` are those of the kind LOST."""
    now_ms = overview.census.now_ms
    found = worker_documents(overview.workers, now_ms)
    known = {(process.host, process.pid) for process in found}  # such as one that was only frozen
    lost = [one for one in lost_workers_in(documents, now_ms) if (one.host, one.pid) not in known]
    return WorkerList(stamp(now_ms) or "", found, sum(p.slots for p in found), sum(p.busy for p in found), tuple(lost))


def is_configured(route: str, config: Config) -> bool:
    """Whether the configuration has this route. The second route with the same glob is called `GLOB (2)`."""
    names = set(_configured(config))
    return route in names or re.sub(r" \(\d+\)$", "", route) in names


def check_route(route: str, config: Config, reported: Iterable[str]) -> None:
    """ConfigError for a name that is misspelt or unknown. `reported` are the routes that workers name.

    Accepts a name that no configured route resembles, if the configuration need not be complete: it imports decorated
    handlers, or has no handlers, as on a machine without workers."""
    known = list(dict.fromkeys([*reported, *_configured(config)]))
    if not route or route in known or is_configured(route, config):
        return
    all_routes = f"the routes are {', '.join(map(repr, known)) or 'none'}"
    is_complete = config.handlers_are_given and not config.imports
    if advice := did_you_mean(route, known, all_routes if is_complete else ""):
        raise ConfigError(f"no route is named {route!r} in the configuration or any worker; {advice}")


def _configured(config: Config) -> Iterator[str]:
    for route in config.handlers:
        yield route.name or route.type or route.match or ""
    if config.worker.allow_commands:
        yield "command"


def note_of_stale_workers(loaded: Loaded, workers: Iterable[WorkerView]) -> str:
    """Names the file that was changed last, if a living worker loaded it before that; "" if none did. What `dlq retry`
    puts back would fail again. Compares the clock of each worker with the times of the files here."""
    files = [*([loaded.path] if loaded.path else []), *source_files(loaded.config, ".")]
    changed_ms, file = max(((_modified_ms(file), file) for file in files), default=(0, ""))
    # After a reload the old worker of a process finishes its jobs: it claims nothing, so the newest one counts.
    by_age = sorted((view.info for view in workers if view.is_alive), key=_loaded_ms)
    living = {(info.host, info.pid): info for info in by_age}
    stale = [info for info in living.values() if _loaded_ms(info) < changed_ms]
    if not stale:
        return ""
    name = printable(os.path.relpath(file))
    if len(living) == 1:
        [info] = stale
        process = f"{printable(info.host)} {info.pid}"
        return (
            f"{name} has changed since the worker {process} loaded it; the worker uses the old version until you "
            f"restart it, or run 'kill -HUP {info.pid}' if it is a service"
        )
    number = f"all {len(living)}" if len(stale) == len(living) else f"{len(stale)} of {len(living)}"
    return (
        f"{name} has changed since {number} workers loaded it; they use the old version until you restart them, or "
        "send SIGHUP to those that are services"
    )


def _loaded_ms(info: WorkerInfo) -> int:
    return info.loaded_ms or info.started_ms


def _modified_ms(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns // 1_000_000
    except OSError:
        return 0


# The files that hold the configured handlers, found without importing them: an operator's command must not run them.
#
# Installed packages are not searched.


_MOST_FILES = 200


def source_files(config: Config, app_dir: str) -> list[str]:
    """The modules of `handlers` and `imports` below this directory, and the modules below it that they import."""
    targets = [route.use.partition(":")[0] for route in config.handlers if route.use is not None]
    waiting = [*config.imports, *targets]
    found: dict[str, None] = {}
    while waiting and len(found) < _MOST_FILES:
        name = waiting.pop()
        file = _file_of(name, app_dir)
        if file is not None and file not in found:
            found[file] = None
            waiting += _imported_by(name, file)
    return list(found)


def _file_of(module: str, app_dir: str) -> str | None:
    if module.partition(".")[0] == "fileq":
        return None
    base = os.path.join(app_dir, *module.split("."))
    return next((file for file in (f"{base}.py", os.path.join(base, "__init__.py")) if os.path.isfile(file)), None)


def _imported_by(module: str, file: str) -> Iterator[str]:
    """Names that may be modules. Yields nothing for a file that is not Python."""
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    package = module if file.endswith("__init__.py") else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (name for name in (base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)) if name)
