"""Files that exist and that no producer takes: why one is left out, which globs miss files by their case. Only reads.

The rules are those of producer/finder/scan.py, on the machine that runs the command.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.types import ProducerView
from fileq.config import Config
from fileq.core.documented import means
from fileq.core.events import SkipReason
from fileq.core.job import is_same_version, signature_text, split_signature
from fileq.core.text import quoted_path
from fileq.core.units import format_duration, short_duration
from fileq.producer.finder.scan import DirectoryWalk, ProducerCounts, ScanRules, text_of
from fileq.producer.markers import Markers
from fileq.queries.job_queries import FileTrace

STEPS_MAX = 10  # of DirectoryWalk, so that a check of the configuration is quick on any tree


class UntakenVersion(Struct, frozen=True):
    """A version of a file that exists and was not enqueued, and why."""

    size: int
    modified_ns: int
    reason: Annotated[str, means("why it was not enqueued")]


class LocalTrace(FileTrace, frozen=True):
    """A trace, and what of the file is here."""

    untaken: Annotated[UntakenVersion | None, means("null, or the file on this machine if it has changed since")] = None


def untaken_version(trace: FileTrace, config: Config, path: bytes) -> UntakenVersion | None:
    newest = trace.versions[0] if trace.versions else None
    if newest is None or not newest.is_in_ledger or newest.size is None:
        return None
    try:
        status = os.stat(path, follow_symlinks=config.producer.follow_symlinks)
    except OSError:
        return None
    # A file is not read here, so the inode stands for its content only where the ledger has no hash.
    inode = "" if split_signature(newest.signature or "").content else status.st_ino
    now = signature_text(f"{status.st_size}-{status.st_mtime_ns}", inode)
    if not stat.S_ISREG(status.st_mode) or is_same_version(newest.signature or "", now):
        return None
    reason = why_not_taken(config, path)
    return UntakenVersion(status.st_size, status.st_mtime_ns, reason) if reason else None


def with_scanned_directory(config: Config, path: bytes, producers: Sequence[ProducerView]) -> Config:
    """With the scan_dir of the running producer of this machine that scans this path, if the configuration names
    another one: a role may have been given its directory on the command line."""
    host = socket.gethostname()
    for directory in (directory for one in producers if one.info.host == host for directory in one.info.roots):
        if path.startswith(os.fsencode(directory).rstrip(b"/") + b"/"):
            return replace(config, producer=replace(config.producer, scan_dir=directory))
    return config


def why_not_taken(config: Config, path: bytes) -> str:
    """Why the file at this path, as it is now, was not enqueued; "" if it does not exist here."""
    rules = ScanRules(config)
    if not os.path.lexists(path) and not rules.why_unreadable(path):
        return ""
    if reason := rules.why_left_out(path):
        return reason
    if suffix := config.producer.ready_suffix:
        markers = Markers(suffix, rules)
        marker, file = markers.of(path), rules.find(path)
        if file is not None and (refusal := markers.refusal(file, marker)):
            name = quoted_path(os.path.basename(path) + os.fsencode(suffix))
            problem = "is missing" if refusal is SkipReason.UNMARKED else "is older than the file; touch it again"
            return f"its marker {name} {problem} (producer.ready_suffix)"
    wait_s = config.producer.settle_unclosed
    age_s = time.time() - os.stat(path).st_mtime
    if age_s < wait_s:
        changed = f"modified {short_duration(age_s)} ago" if age_s >= 0 else "modified in the future"
        wanted = f"producer.settle_unclosed is {format_duration(wait_s)}"
        return f"it may still be being written: it was {changed}, and {wanted}"
    return (
        "no rule excludes it: the next scan will enqueue it, unless its producer was started with other settings; "
        "'fileq stats' shows which directory each producer scans, and how many entries it can't read"
    )


def missed_by_case(config: Config) -> list[str]:
    """A warning for each glob of include_globs that misses files only because of upper and lower case. Looks at a
    bounded part of scan_dir."""
    rules = ScanRules(config, counts := _Excluded())
    walk = DirectoryWalk(rules, rules.root, _Unwatched())
    for _ in range(STEPS_MAX):
        walk.step()
    walk.close()
    missed: dict[str, list[bytes]] = {}
    for path in counts.paths:
        directory, name = os.path.split(path)
        if glob := rules.filter.missed_by_case(rules.prefix_of(directory), text_of(name)):
            missed.setdefault(glob, []).append(path)
    return [_warning(glob, sorted(paths)) for glob, paths in missed.items()]


def scans_outside_roots(config: Config) -> list[str]:
    """A warning for each schedule that scans a directory whose files workers of this configuration refuse."""
    paths, found = config.paths, []
    for name, settings in config.schedules.items():
        if settings.scan is None or paths.allows(paths.here(os.path.abspath(os.fsencode(settings.scan)))):
            continue
        roots = ", ".join(os.fsdecode(root) for root in paths.roots)
        found.append(
            f"schedules.{name}: scan: {settings.scan} is below none of the roots ({roots}), so workers refuse its "
            "files; list all roots in worker.allowed_roots"
        )
    return found


def _warning(glob: str, paths: list[bytes]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    ending = text_of(os.path.splitext(paths[0])[1])
    is_ending = ending and glob.lower().endswith(ending.lower())
    wanted = repr(glob[: -len(ending)] + ending) if is_ending else "a glob for them"
    advice = f"add {wanted} here and to a route"
    missed = f"{quoted_path(paths[0])}{more}"
    return f"producer.include_globs: {glob!r} misses {missed} because of case; to include them, {advice}"


class _Excluded(ProducerCounts):
    """Keeps the paths that globs leave out. As many as a bounded walk finds."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[bytes] = []

    def skip(self, reason: SkipReason, path: bytes, *, is_directory: bool = False) -> None:
        if reason is SkipReason.EXCLUDED:
            self.paths.append(path)


class _Unwatched:
    def watch(self, directory: bytes) -> None:
        pass
