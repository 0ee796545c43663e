"""One look at the directory of a delivery: its files and the files about it, as they are now. Changes nothing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from fileq.files.beneath import open_beneath, open_directory
from fileq.producer.deliveries.places import DeliveryPlace, is_manifest
from fileq.producer.finder.found_file import FoundFile, found_at
from fileq.producer.finder.rules import ScanRules
from fileq.producer.markers import Markers

MANIFEST_MAX = 64 << 20
ENTRIES_MAX = 2_000_000  # files, directories and links: twice as many as a manifest can name


class DirectoryLook(Struct):
    """`files` are those that would become jobs, by path, and `unmarked` those whose marker is missing: it has not come
    yet, or was removed when the file was enqueued. To those that are `linked` too, a link in the delivery leads.
    `manifest` is the newest one. `newest_ns` is the last change of all of them, by the clock of the file system."""

    files: dict[bytes, FoundFile]
    unmarked: dict[bytes, FoundFile] = {}
    linked: set[bytes] = set()
    has_marker: bool = False
    manifest: bytes | None = None
    newest_ns: int = 0


def look_at(place: DeliveryPlace, rules: ScanRules, markers: Markers, since_ns: int) -> DirectoryLook:
    """Leaves out what has not changed since `since_ns`: it belongs to an earlier delivery. Raises OSError if the
    directory can't be read or has more than ENTRIES_MAX entries; what vanishes meanwhile is left out."""
    look = DirectoryLook({})
    manifest_ns = -1
    complete = place.settings.complete
    for path, status, is_linked in _walk(place.directory, rules):
        if status.st_ctime_ns <= since_ns:
            continue
        look.newest_ns = max(look.newest_ns, status.st_ctime_ns)
        directory, name = os.path.split(path)
        if directory == place.directory and place.is_control_file(name):
            if is_linked:
                continue
            look.has_marker |= complete.marker is not None and name == os.fsencode(complete.marker)
            is_newer = status.st_mtime_ns > manifest_ns
            if complete.manifest is not None and is_manifest(complete.manifest, name) and is_newer:
                look.manifest, manifest_ns = path, status.st_mtime_ns
        elif rules.covers(path) and rules.marked_file(path) is None:
            file = found_at(path, status)
            is_ready = markers.refusal(file, markers.of(path)) is None
            (look.files if is_ready else look.unmarked)[path] = file
            if is_linked:
                look.linked.add(path)
    return look


def _walk(top: bytes, rules: ScanRules) -> Iterator[tuple[bytes, os.stat_result, bool]]:
    """The regular files, and whether a link below `top` leads to them. Directories are listed by their descriptors: one
    that is replaced by a link meanwhile is not entered."""
    roots, follows_links = (rules.root,), rules.follows_links
    left, seen = [(top, False)], 0
    while left:
        directory, is_linked = left.pop()
        try:
            opened = open_directory(directory, roots, follows_links=follows_links)
        except OSError:
            if directory == top:
                raise
            continue
        try:
            names = os.listdir(opened)
            seen += len(names)
            if seen > ENTRIES_MAX:
                raise OSError(errno.E2BIG, f"it has more than {ENTRIES_MAX:,} entries; deliver it in parts", top)
            for name in names:
                path = os.path.join(directory, os.fsencode(name))
                try:
                    status = os.stat(name, dir_fd=opened, follow_symlinks=False)
                    is_link = stat.S_ISLNK(status.st_mode)
                    if is_link and follows_links:
                        status = _followed(path, roots)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield path, status, is_linked or is_link
                elif stat.S_ISDIR(status.st_mode) and rules.is_entered(path):
                    left.append((path, is_linked or is_link))
        finally:
            os.close(opened)


def _followed(path: bytes, roots: tuple[bytes, ...]) -> os.stat_result:
    """Of what a link leads to. Raises OSError if that is outside of the roots."""
    reference = open_beneath(path, roots)
    try:
        return os.fstat(reference)
    finally:
        os.close(reference)
