"""`fileq doctor`: checks the environment of fileq and yields findings. Must create and change nothing.

A check must not raise: doctor runs on systems that are broken. server_checks.py has those of the REST server, the
webhooks, the schedules and the port of /metrics.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.commands.configured_handlers import load_handlers
from fileq.commands.server_checks import (
    catalog_of,
    check_port,
    check_schedules,
    check_server,
    check_webhooks,
    is_configured,
)
from fileq.commands.untaken_files import missed_by_case
from fileq.config import Config, Loaded
from fileq.config.load import describe_broker_choice
from fileq.config.value_types import MOVE
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.finding import Finding, sound, unknown, wrong
from fileq.files.paths import advice_for, directory_problem
from fileq.files.status import ScanDirMounts
from fileq.handlers.routes import made_job_problems, warnings_of
from fileq.producer.finder.finder import WatchModes

COUNT_TIMEOUT_S = 2.0  # limit of one walk through a directory tree
_WATCHES = "/proc/sys/fs/inotify/max_user_watches"
_HANDLERS_ADVICE = "--app-dir names the directory of the handlers; 'fileq try PATH' runs one"


def check_environment(loaded: Loaded, role: str, app_dir: str, open_it: Callable[[], FullBroker]) -> Iterator[Finding]:
    """Yields every finding as soon as it is known."""
    yield sound("configuration", loaded.source)
    config, is_serving = loaded.config, role in ("serve", "start") or (role == "all" and is_configured(loaded))
    is_producing, is_working = role in ("producer", "all", "start"), role in ("worker", "all", "start")
    checks: tuple[tuple[bool, str, Iterable[Finding]], ...] = (
        (True, "broker", check_broker(loaded, open_it)),
        (is_producing, "scan_dir", check_scan_dir(loaded, role, app_dir)),
        (is_producing, "watching", check_watching(config)),
        (is_working, "roots", check_roots(loaded, open_it)),
        (is_working, "after", check_after(config)),
        (is_working, "handlers", check_handlers(loaded, app_dir)),
        (is_working, "schedules", check_schedules(config)),
        (is_working, "webhooks", check_webhooks(loaded, open_it)),
        (is_serving, "server", check_server(loaded, open_it)),
        (True, "metrics port", check_port(loaded)),
    )
    for is_wanted, name, findings in checks:
        try:
            yield from findings if is_wanted else ()
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            yield wrong(name, f"{where}{error.strerror or error}", "fix it, then run 'fileq doctor' again")


class TreeCount(Struct):
    """Directories below scan_dir."""

    directories: int = 0
    unreadable: int = 0
    first_unreadable: bytes = b""
    is_complete: bool = True

    @property
    def shown(self) -> str:
        return f"{'' if self.is_complete else 'more than '}{_directories(self.directories)}"


def _directories(count: int) -> str:
    return f"{count} {'directory' if count == 1 else 'directories'}"


def check_scan_dir(loaded: Loaded, role: str, app_dir: str) -> Iterator[Finding]:
    config = loaded.config
    scan_dir = config.producer.scan_dir
    root = os.path.abspath(os.fsencode(scan_dir))
    if what := directory_problem(root, is_listed=True):
        if config.paths.here(root) != root:
            # The files come from another machine under another path; only the producer there needs scan_dir.
            yield unknown("scan_dir", f"{scan_dir} {what} here; workers find its files by worker.path_map")
        elif role == "all" and not loaded.names_roots and not _takes_files(loaded.config, app_dir):
            detail = f"{scan_dir} {what}; only a producer needs it, and no handler takes files"
            yield unknown("scan_dir", detail, advice_for(what))
        else:
            yield wrong("scan_dir", f"{scan_dir} {what}", f"{advice_for(what)}, or set producer.scan_dir")
        return
    tree = count_directories(root, time.monotonic() + COUNT_TIMEOUT_S)
    if tree.unreadable:
        first = os.fsdecode(tree.first_unreadable)
        yield wrong(
            "scan_dir",
            f"{_directories(tree.unreadable)} below {scan_dir} can't be read, such as {first!r}",
            "grant this user r and x on each, or exclude it",
        )
    else:
        yield sound("scan_dir", f"{scan_dir}, {tree.shown}")
    yield from (unknown("globs", warning) for warning in missed_by_case(config))


def _takes_files(config: Config, app_dir: str) -> bool:
    """Whether a handler takes files; True if the handlers can't be loaded."""
    try:
        return bool(load_handlers(config, app_dir).globs)
    except ConfigError:
        return True  # the check of the handlers reports it


def count_directories(root: bytes, deadline_s: float) -> TreeCount:
    tree = TreeCount()
    waiting = [root]
    while waiting:
        if time.monotonic() > deadline_s:
            tree.is_complete = False
            break
        directory = waiting.pop()
        tree.directories += 1
        try:
            with os.scandir(directory) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            continue
        except OSError:
            tree.unreadable += 1
            tree.first_unreadable = tree.first_unreadable or directory
    return tree


def check_watching(config: Config) -> Iterator[Finding]:
    root = os.path.abspath(os.fsencode(config.producer.scan_dir))
    if directory_problem(root, is_listed=True):
        return
    mode = config.producer.watch
    modes = WatchModes(mode, ScanDirMounts(root))
    if mode == "off":
        yield sound("watching", "off: only full scans find new files")
    elif modes.is_event_free:
        reason = "producer.watch is poll" if mode == "poll" else "its file system does not report remote changes"
        yield sound("watching", f"by polling; {reason}")
    else:
        polled = len(modes.polled())
        by_polling = f", but {_directories(polled)} by polling" if polled else ""
        yield sound("watching", f"by events{by_polling}")
        yield _watches(root)


def _watches(root: bytes) -> Finding:
    from fileq.producer.finder.finder import DirectoryWatcher  # imported late: it loads watchdog

    try:
        watcher = DirectoryWatcher(threading.Event())
    except OSError as error:
        return wrong("inotify", f"{error.strerror}", "sysctl fs.inotify.max_user_instances=1024")
    try:
        watcher.watch(root)
    except OSError as error:
        return wrong("inotify", f"{error.strerror}", "sysctl fs.inotify.max_user_watches=1048576")
    finally:
        watcher.close()
    tree = count_directories(root, time.monotonic() + COUNT_TIMEOUT_S)
    limit = max_watches()
    if limit is None:
        return unknown("inotify", f"{_WATCHES} can't be read")
    if tree.directories > limit:
        wanted = max(1_048_576, 2 * tree.directories)
        return wrong(
            "inotify",
            f"{tree.shown} to watch, but only {limit} watches allowed",
            f"sysctl fs.inotify.max_user_watches={wanted}; until then the producer polls",
        )
    return sound("inotify", f"{tree.shown} to watch; this user's programs may use {limit} watches")


def max_watches() -> int | None:
    try:
        with open(_WATCHES) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def check_roots(loaded: Loaded, open_it: Callable[[], FullBroker]) -> Iterator[Finding]:
    """Checks the directories below which workers may open files. While one is missing, no job with a file runs. Names
    running workers of this broker with other roots: two configurations may share a database by mistake."""
    config = loaded.config
    for root in config.paths.roots:
        shown, what = os.fsdecode(root), directory_problem(root)
        if not what:
            yield sound("roots", f"{shown} exists")
        elif loaded.names_roots:
            key = "worker.allowed_roots" if config.worker.allowed_roots else "producer.scan_dir or worker.path_map"
            advice = f"mount it, {advice_for(what)}, or change {key}"
            yield wrong("roots", f"{shown} {what}: file jobs are deferred", advice)
        else:
            yield unknown("roots", f"{shown} {what}: file jobs, if any, are deferred", advice_for(what))
    broker = catalog_of(config, open_it)
    try:
        infos = [view.info for view in broker.workers() if view.is_alive] if broker is not None else []
    except BrokerError:
        return  # the check of the broker reports it
    others = {info.roots: f"{info.host}-{info.pid}" for info in infos if info.roots}
    for roots, who in others.items():
        if set(roots) != set(config.paths.allowed_there):
            detail = f"worker {who} has other roots ({', '.join(roots)}) and runs only jobs below them"
            advice = "if it belongs to another application, give each its own sqlite.path or redis.prefix"
            yield unknown("roots", detail, advice)


def check_after(config: Config) -> Iterator[Finding]:
    """Checks that workers can delete or move files as worker.after says."""
    rules = {"completed": config.worker.after.completed, "dead": config.worker.after.dead}
    active = {end: rule for end, rule in rules.items() if rule != "keep"}
    if not active:
        return
    for root in config.paths.roots:
        if os.path.isdir(root) and not os.access(root, os.W_OK | os.X_OK, effective_ids=True):
            shown = os.fsdecode(root)
            yield wrong(
                "after",
                f"{shown} is not writable, but worker.after moves or deletes files in it",
                "grant this user w on it",
            )
    for end, rule in active.items():
        if rule.startswith(MOVE):
            yield _check_target(config, end, rule.removeprefix(MOVE))
        else:
            yield sound("after", f"files of {end} jobs are deleted")


def _check_target(config: Config, end: str, folder: str) -> Finding:
    target = os.path.abspath(os.fsencode(folder))
    existing = target
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing) or not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        advice = f"check the permissions of {os.fsdecode(existing)}"
        return wrong("after", f"files of {end} jobs can't be moved to {folder}", advice)
    scan_dir = os.path.realpath(os.fsencode(config.producer.scan_dir))
    is_inside = os.path.realpath(target).startswith(scan_dir.rstrip(b"/") + b"/")
    note = ", which the producer does not scan" if is_inside else ""
    return sound("after", f"files of {end} jobs are moved to {folder}{note}")


def check_broker(loaded: Loaded, open_it: Callable[[], FullBroker]) -> Iterator[Finding]:
    """Must never create a database."""
    config = loaded.config
    choice = describe_broker_choice(loaded)
    if config.broker_kind == "memory":
        yield sound("broker", f"{choice}; all jobs are lost when its process ends")
        return
    if config.broker_kind == "sqlite" and not os.path.exists(config.sqlite.path):
        from fileq.brokers.sqlite.examine import examine_location

        yield unknown("broker", f"{choice}; there is no database yet", "the first start creates it")
        yield from examine_location(config.sqlite.path)
        return
    try:
        broker = open_it()
        findings = broker.examine(permissions=True)
    except (BrokerError, ConfigError) as error:
        yield wrong("broker", str(error), _advice(config.broker_kind, str(error), choice))
        return
    yield sound("broker", choice)
    yield from findings


def _advice(kind: str, error: str, choice: str) -> str:
    if kind == "sqlite":
        return ""  # the error names the next step
    is_refused = any(word in error for word in ("NOAUTH", "WRONGPASS", "username-password"))
    what = "check redis.username and redis.password" if is_refused else "check that it is running and reachable"
    return f"{what}: {choice}"


def check_handlers(loaded: Loaded, app_dir: str) -> Iterator[Finding]:
    """Imports handlers, as a worker would, but runs none."""
    try:
        routes = load_handlers(loaded.config, app_dir)
    except ConfigError as error:
        for problem in error.problems:
            yield wrong("handlers", problem, _HANDLERS_ADVICE if "module" in problem else "")
        return
    for problem in made_job_problems(loaded.config, routes):
        yield unknown("handlers", problem, "'fileq tasks' lists the tasks of the configuration")
    for warning in routes.warnings:
        yield unknown("handlers", warning)
    if not loaded.config.handlers_are_given and len(routes) <= 1:
        yield unknown("handlers", "none is configured: files are only checksummed", "set 'handlers' to process them")
        return
    for route in routes:
        yield sound("handlers", str(route))
    for warning in warnings_of(loaded.config, routes):
        yield unknown("handlers", warning)
