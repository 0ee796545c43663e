"""Can the producer see the files and hear of new ones, can the worker reach them and do with them what it should."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

from msgspec import Struct

from fileq.config import Config, Loaded
from fileq.core.finding import Finding, sound, unknown, wrong
from fileq.files.mounts import ScanDirMounts
from fileq.producer.finder.rules import ScanRules
from fileq.producer.finder.watch_modes import WatchModes

LOOK_S = 2.0  # the longest look into a tree
_WATCHES = "/proc/sys/fs/inotify/max_user_watches"
_MOVE = "move:"


class Tree(Struct):
    """What a look into scan_dir has found."""

    directories: int = 0
    unreadable: int = 0
    first_unreadable: bytes = b""
    is_whole: bool = True

    @property
    def shown(self) -> str:
        count = f"{'' if self.is_whole else 'more than '}{self.directories}"
        return f"{count} {'directory' if count == '1' else 'directories'}"


def check_scan_dir(loaded: Loaded) -> Iterator[Finding]:
    config = loaded.config
    scan_dir = config.producer.scan_dir
    root = os.path.abspath(os.fsencode(scan_dir))
    if not os.path.isdir(root):
        what = "is not a directory" if os.path.lexists(root) else "does not exist"
        if config.paths.here(root) != root:
            # Files come from another machine, under another name; only its producer needs this one.
            yield unknown("scan_dir", f"{scan_dir} {what} here; workers find its files by worker.path_map")
        else:
            yield wrong("scan_dir", f"{scan_dir} {what}", "create it, or set producer.scan_dir")
        return
    if not os.access(root, os.R_OK | os.X_OK, effective_ids=True):
        yield wrong("scan_dir", f"{scan_dir} can't be read", "give this user the rights r and x on it")
        return
    tree = look_into(root, time.monotonic() + LOOK_S)
    if tree.unreadable:
        first = os.fsdecode(tree.first_unreadable)
        yield wrong(
            "scan_dir",
            f"{tree.unreadable} directories below {scan_dir} can't be read, such as {first!r}",
            "give this user the rights r and x on them, or exclude them",
        )
    else:
        yield sound("scan_dir", f"{scan_dir}, {tree.shown}")


def look_into(root: bytes, until_s: float) -> Tree:
    tree = Tree()
    waiting = [root]
    while waiting:
        if time.monotonic() > until_s:
            tree.is_whole = False
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
    if not os.path.isdir(root):
        return
    mode = config.producer.watch
    modes = WatchModes(mode, ScanDirMounts(root))
    if mode == "off":
        yield sound("watching", "off: new files are found by the rescans only")
    elif modes.is_event_free:
        reason = "producer.watch is poll" if mode == "poll" else "its file system tells of no changes made elsewhere"
        yield sound("watching", f"by polling; {reason}")
    else:
        polled = len(modes.polled())
        yield sound("watching", "by events" + (f", but {polled} directories by polling" if polled else ""))
        yield _watches(root)


def _watches(root: bytes) -> Finding:
    from fileq.producer.finder.watch import DirectoryWatcher  # loads watchdog, so only when needed

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
    tree = look_into(root, time.monotonic() + LOOK_S)
    most = most_watches()
    if most is None:
        return unknown("inotify", f"{_WATCHES} can't be read")
    if tree.directories > most:
        wanted = max(1_048_576, 2 * tree.directories)
        return wrong(
            "inotify",
            f"{tree.shown} to watch, and at most {most} watches",
            f"sysctl fs.inotify.max_user_watches={wanted}; until then it polls",
        )
    return sound("inotify", f"{tree.shown} to watch, at most {most} watches for all programs of this user")


def most_watches() -> int | None:
    try:
        with open(_WATCHES) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def check_roots(config: Config) -> Iterator[Finding]:
    """Below which workers may open files. While one is missing, no file jobs are claimed."""
    for root in config.paths.roots:
        shown = os.fsdecode(root)
        if not os.path.isdir(root):
            key = "worker.allowed_roots" if config.worker.allowed_roots else "producer.scan_dir or worker.path_map"
            yield wrong("roots", f"{shown} is missing: no file job runs", f"mount or create it, or change {key}")
        elif not os.access(root, os.R_OK | os.X_OK, effective_ids=True):
            yield wrong("roots", f"{shown} can't be read", "give this user the rights r and x on it")
        else:
            yield sound("roots", f"{shown} is there")


def check_after(config: Config) -> Iterator[Finding]:
    """Whether what worker.after asks for can be done."""
    rules = {"completed": config.worker.after.completed, "dead": config.worker.after.dead}
    active = {end: rule for end, rule in rules.items() if rule != "keep"}
    if not active:
        return
    for root in config.paths.roots:
        if os.path.isdir(root) and not os.access(root, os.W_OK | os.X_OK, effective_ids=True):
            shown = os.fsdecode(root)
            yield wrong("after", f"{shown} is not writable, and worker.after takes files away", "give the right w")
    for end, rule in active.items():
        if rule.startswith(_MOVE):
            yield _target(config, end, rule.removeprefix(_MOVE))
        else:
            yield sound("after", f"files of {end} jobs are deleted")


def _target(config: Config, end: str, folder: str) -> Finding:
    target = os.path.abspath(os.fsencode(folder))
    rules = ScanRules(config)
    if os.path.realpath(target).startswith(os.path.realpath(rules.root).rstrip(b"/") + b"/"):
        inside = rules.root.rstrip(b"/") + b"/" + os.path.relpath(target, rules.root)
        if rules.covers(os.path.join(inside, b"a.txt")):
            below = os.fsdecode(os.path.relpath(target, rules.root))
            return wrong(
                "after",
                f"files of {end} jobs are moved to {folder}, where the producer finds them again",
                f"add '{below}/**' to producer.exclude_globs, or move them elsewhere",
            )
    there = target
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        advice = f"see the rights of {os.fsdecode(there)}"
        return wrong("after", f"files of {end} jobs can't be moved to {folder}", advice)
    return sound("after", f"files of {end} jobs are moved to {folder}")
