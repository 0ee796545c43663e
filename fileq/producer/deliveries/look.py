"""One look at the directory of a delivery: its files and the files about it, as they are now. Changes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from fileq.producer.deliveries.places import DeliveryPlace, is_manifest
from fileq.producer.finder.found_file import FoundFile, found_at
from fileq.producer.finder.rules import ScanRules

MANIFEST_MAX = 64 << 20


class DirectoryLook(Struct):
    """`files` are those that would become jobs, by path. `manifest` is the newest one. `newest_ns` is the last
    change of all of them, by the clock of the file system."""

    files: dict[bytes, FoundFile]
    has_marker: bool = False
    manifest: bytes | None = None
    newest_ns: int = 0


def look_at(place: DeliveryPlace, rules: ScanRules, since_ns: int) -> DirectoryLook:
    """Leaves out what has not changed since `since_ns`: it belongs to an earlier delivery. Raises OSError if the
    directory can't be read; what vanishes meanwhile is left out."""
    look = DirectoryLook({})
    manifest_ns = -1
    complete = place.settings.complete
    for path, status in _walk(place.directory, rules):
        if status.st_ctime_ns <= since_ns:
            continue
        look.newest_ns = max(look.newest_ns, status.st_ctime_ns)
        directory, name = os.path.split(path)
        if directory == place.directory and place.is_control_file(name):
            look.has_marker |= complete.marker is not None and name == os.fsencode(complete.marker)
            is_newer = status.st_mtime_ns > manifest_ns
            if complete.manifest is not None and is_manifest(complete.manifest, name) and is_newer:
                look.manifest, manifest_ns = path, status.st_mtime_ns
        elif rules.covers(path) and rules.marked_file(path) is None and rules.is_ready(path):
            look.files[path] = found_at(path, status)
    return look


def _walk(top: bytes, rules: ScanRules) -> Iterator[tuple[bytes, os.stat_result]]:
    with os.scandir(top) as entries:
        found = list(entries)
    for entry in found:
        try:
            status = entry.stat(follow_symlinks=rules.follows_links)
            if stat.S_ISREG(status.st_mode):
                yield entry.path, status
            elif stat.S_ISDIR(status.st_mode) and rules.is_entered(entry.path):
                yield from _walk(entry.path, rules)
        except OSError:
            continue
