"""Decides whether a delivery is complete, and what is wrong with its files. Changes nothing.

Looks at the directory of the delivery, reads its manifest, and compares files with their checksums.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import operator
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from io import BufferedReader
from typing import TypeAlias

from msgspec import Struct

from fileq.core.delivery import DeliveryCheck, naming_others, problem_of, unreadable
from fileq.core.errors import ConfigError
from fileq.core.units import format_duration
from fileq.files.beneath import open_beneath, open_directory
from fileq.files.manifest import ENTRIES_MAX, ManifestEntry, read_manifest
from fileq.files.status import FoundFile, found_at
from fileq.producer.content_check import ContentReading
from fileq.producer.finder.scan import DeliveryPlace, ScanRules, is_manifest
from fileq.producer.markers import Markers

RECENT_NS = 2_000_000_000
MANIFEST_MAX = 64 << 20
LISTED_MAX = 2_000_000  # files, directories and links: twice as many as a manifest can name
LONG_PATH = 256  # bytes; an entry counts once more for each of them
ENTRY_BYTES = 2_000  # of memory for an entry of the directory together with one of the manifest
MANIFEST_SHARE = 8  # a manifest of this share of the memory fills the rest of it while it is parsed
TURN_S = 0.1  # how long one step reads


class LookLimits(Struct, frozen=True):
    """What a look at a delivery may hold: entries of its directory, and entries and bytes of its manifest."""

    listed: int = LISTED_MAX
    manifest_entries: int = ENTRIES_MAX
    manifest_bytes: int = MANIFEST_MAX

    @classmethod
    def within(cls, memory: int | None) -> LookLimits:
        """No more than fits into this many bytes; None is no limit."""
        if memory is None:
            return cls()
        entries = memory // ENTRY_BYTES
        return cls(min(LISTED_MAX, entries), min(ENTRIES_MAX, entries), min(MANIFEST_MAX, memory // MANIFEST_SHARE))


Listed: TypeAlias = Sequence[tuple[bytes, ManifestEntry]]  # the files of a manifest; none without one


class ManifestReader:
    """Reads each version of a manifest once: looks are frequent, and by hard links one file can be the manifest of many
    deliveries. Keeps as many entries as one manifest can have."""

    def __init__(self, wall_ns: Callable[[], int], limits: LookLimits) -> None:
        self._wall_ns = wall_ns
        self._limits = limits
        self._kept: dict[tuple[int, ...], list[ManifestEntry] | ConfigError] = {}  # the last used is the last

    def entries(self, fd: int) -> list[ManifestEntry]:
        """Closes `fd`. Raises ConfigError for what is wrong with the manifest, and OSError."""
        with open(fd, "rb") as file:
            version = _version(os.fstat(fd))
            found = self._kept.pop(version, None)
            if found is None:
                found = self._read(file)
            # A file that changed a moment ago may change again without another time.
            if version == _version(os.fstat(fd)) and self._wall_ns() - version[-1] > RECENT_NS:
                self._kept[version] = found
                while sum(map(_weight, self._kept.values())) > self._limits.manifest_entries:
                    del self._kept[next(iter(self._kept))]
        if isinstance(found, ConfigError):
            raise ConfigError(found.problems)
        return found

    def _read(self, file: BufferedReader) -> list[ManifestEntry] | ConfigError:
        # No more than it has: read() would allocate all that it may read.
        raw = file.read(min(os.fstat(file.fileno()).st_size, self._limits.manifest_bytes) + 1)
        if len(raw) > self._limits.manifest_bytes:
            return ConfigError(f"the manifest has more than {self._limits.manifest_bytes:,} bytes")
        try:
            return read_manifest(raw, "the manifest", self._limits.manifest_entries)
        except ConfigError as error:
            return error


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _weight(found: list[ManifestEntry] | ConfigError) -> int:
    return 1000 + (len(found) if isinstance(found, list) else 0)


def listed_files(
    place: DeliveryPlace, look: DirectoryLook, open_file: Callable[[bytes], int], reader: ManifestReader
) -> Listed:
    """The files of the manifest, whose paths are relative to its directory; () without one. Raises ConfigError or
    OSError if it can't be read."""
    if look.manifest is None:
        return ()
    top, name = place.directory, shown(os.path.basename(look.manifest))
    try:
        entries = reader.entries(open_file(look.manifest))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    listed = [(os.path.normpath(os.path.join(top, os.fsencode(entry.path))), entry) for entry in entries]
    outside = [entry.path for path, entry in listed if not path.startswith(top + b"/")]
    if outside:
        raise ConfigError(f"{name}: the manifest lists {outside[0]!r:.120}, which is not below its directory")
    return listed


def awaited(
    place: DeliveryPlace,
    look: DirectoryLook,
    listed: Listed,
    *,
    members: int,
    arrived: Collection[bytes],
    quiet_s: float,
) -> str:
    """What a delivery still lacks; "" if it is complete. `members` is the number of files that belong to it. `arrived`
    are paths of members whose files are gone: handlers move or delete files. `quiet_s` is the time without news."""
    complete = place.settings.complete
    if complete.marker is not None:
        return "" if look.has_marker and members else f"the marker {complete.marker} did not arrive"
    if complete.files is not None:
        return "" if members >= complete.files else f"{members} of {complete.files} files arrived"
    if complete.quiet is not None:
        is_quiet = quiet_s >= complete.quiet
        return "" if is_quiet else f"files arrived or changed within the last {format_duration(complete.quiet)}"
    if look.manifest is None:
        return f"no manifest {complete.manifest} arrived"
    absent = [path for path, _ in listed if path not in look.files and path not in arrived]
    return f"{len(absent)} of the {len(listed)} files in the manifest did not arrive" if absent else ""


def problems_of(
    place: DeliveryPlace,
    missing: str,
    listed: Listed,
    look: DirectoryLook,
    arrived: Mapping[bytes, int],
    checksums: ChecksumReader | None = None,
) -> list[DeliveryCheck]:
    """One check for each file of the manifest that is missing, differs or can't be read, or one for the delivery if it
    has no manifest and something is `missing`. `arrived` has the sizes of members whose files are gone."""
    directory = shown(place.directory)
    if missing and not listed:
        waited = format_duration(place.settings.deadline or 0)
        return [DeliveryCheck(directory, directory, incomplete=f"after {waited} {missing}")]
    found: list[tuple[DeliveryCheck, str]] = []
    for path, entry in listed:
        file = look.files.get(path)
        size = file.size if file is not None else arrived.get(path)
        sha256 = checksums.found.get(path, "") if checksums is not None else ""
        why = checksums.failed.get(path, "") if checksums is not None else ""
        if path in look.linked:
            why = "a link leads to it"
        elif size is not None and entry.size in (None, size) and entry.sha256 and not sha256 and not why:
            why = "its checksum was not compared" + (", because the file is gone" if file is None else "")
        # Nothing is said of the file that a link leads to.
        check = DeliveryCheck(directory, shown(path), entry.size, entry.sha256, None if why else size, sha256)
        problem = unreadable(check.path, why) if why else problem_of(check, size, sha256)
        if problem:
            found.append((check, problem))
    return naming_others(found)


def shown(path: bytes) -> str:
    """The path as text that fits into JSON, whatever its bytes are."""
    return path.decode(errors="backslashreplace")


def to_be_read(listed: Listed, look: DirectoryLook) -> Sequence[FoundFile]:
    """The files whose checksums the manifest has. Not those of another size than it says: they are
    wrong anyway, and may be huge. To none of them a link leads: the checksum of its target would be shown to the
    sender."""
    return [
        file
        for path, entry in listed
        if entry.sha256
        and (file := look.files.get(path)) is not None
        and path not in look.linked
        and entry.size in (None, file.size)
    ]


class DirectoryLook(Struct):
    """The files of a delivery and the files about it, as they were at one look.

    `files` are those that would become jobs, by path, and `unmarked` those whose marker is missing: it has not come
    yet, or was removed when the file was enqueued. `earlier` are those that have not changed since an earlier delivery:
    only a manifest can name them again. To those that are `linked` too, a link in the delivery leads.
    `manifest` is the newest one. `newest_ns` is the last change of all of them, by the clock of the file system."""

    files: dict[bytes, FoundFile]
    unmarked: dict[bytes, FoundFile] = {}
    earlier: dict[bytes, FoundFile] = {}
    linked: set[bytes] = set()
    has_marker: bool = False
    manifest: bytes | None = None
    newest_ns: int = 0

    def fingerprint(self) -> int:
        """Tells the files of this look from those of another one, without keeping either. Only within this process:
        its hashes are salted, so no sender can make two looks the same."""
        return functools.reduce(operator.xor, map(hash, self.files.values()), 0)


def look_at(
    place: DeliveryPlace, rules: ScanRules, markers: Markers | None, since_ns: int, listed_max: int = LISTED_MAX
) -> DirectoryLook:
    """What has not changed since `since_ns` belongs to an earlier delivery. Raises OSError if the directory can't be
    read or has more than `listed_max` entries; what vanishes meanwhile is left out."""
    look = DirectoryLook({})
    manifest_ns = -1
    complete = place.settings.complete
    for path, status, is_linked in _walk(place.directory, rules, listed_max):
        is_earlier = status.st_ctime_ns <= since_ns
        if is_earlier and complete.manifest is None:
            continue
        look.newest_ns = max(look.newest_ns, status.st_ctime_ns)
        directory, name = os.path.split(path)
        if directory == place.directory and place.is_control_file(name):
            if is_linked or is_earlier:
                continue
            look.has_marker |= complete.marker is not None and name == os.fsencode(complete.marker)
            is_newer = status.st_mtime_ns > manifest_ns
            if complete.manifest is not None and is_manifest(complete.manifest, name) and is_newer:
                look.manifest, manifest_ns = path, status.st_mtime_ns
        elif rules.covers(path) and rules.marked_file(path) is None:
            file = found_at(path, status)
            if is_earlier:
                look.earlier[path] = file
            else:
                is_ready = markers is None or markers.refusal(file, markers.of(path)) is None
                (look.files if is_ready else look.unmarked)[path] = file
            if is_linked:
                look.linked.add(path)
    return look


def _walk(top: bytes, rules: ScanRules, listed_max: int) -> Iterator[tuple[bytes, os.stat_result, bool]]:
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
            for name in _names_in(opened):  # never all of them at once: a sender may have made any number
                path = os.path.join(directory, os.fsencode(name))
                seen += 1 + len(path) // LONG_PATH
                if seen > listed_max:
                    limit = f"{listed_max:,} entries" + (" (worker.max_memory)" if listed_max < LISTED_MAX else "")
                    raise OSError(errno.E2BIG, f"it has more than {limit}; deliver it in parts", top)
                try:
                    status = os.stat(name, dir_fd=opened, follow_symlinks=False)
                    is_link = stat.S_ISLNK(status.st_mode)
                    if is_link and follows_links:
                        reference = open_beneath(path, roots)
                        try:
                            status = os.fstat(reference)
                        finally:
                            os.close(reference)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield path, status, is_linked or is_link
                elif stat.S_ISDIR(status.st_mode) and rules.is_entered(path):
                    left.append((path, is_linked or is_link))
        finally:
            os.close(opened)


def _names_in(directory: int) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name


class ChecksumReader:
    """`open_file` opens a file for reading, or raises OSError."""

    def __init__(
        self, files: Sequence[FoundFile], open_file: Callable[[bytes], int], monotonic: Callable[[], float]
    ) -> None:
        self._left = list(files)
        self._open_file = open_file
        self._monotonic = monotonic
        self._reading: ContentReading | None = None  # of the last file
        self.began_s = monotonic()
        self.found: dict[bytes, str] = {}  # the checksum of each file that was read
        self.failed: dict[bytes, str] = {}  # why a file was not read

    @property
    def is_done(self) -> bool:
        return not self._left

    def step(self) -> None:
        until_s = self._monotonic() + TURN_S
        while self._left and self._monotonic() < until_s:
            file = self._left[-1]
            self._reading = self._reading or ContentReading(file, self._open_file, hashlib.sha256())
            try:
                checksum = self._reading.read_part(lambda: self._monotonic() < until_s)
                if checksum is None:
                    continue
                if checksum:
                    self.found[file.path] = checksum
                else:
                    self.failed[file.path] = "it changed while it was read"
            except OSError as error:
                self.failed[file.path] = error.strerror or str(error)
            self._reading = None
            self._left.pop()

    def give_up(self, why: str) -> None:
        """Reads no more; the files that are left have failed."""
        self.failed |= dict.fromkeys((file.path for file in self._left), why)
        self._left.clear()
