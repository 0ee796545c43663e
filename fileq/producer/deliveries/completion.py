"""Decides whether a delivery is complete, and what is wrong with its files. Reads a manifest, nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from msgspec import Struct

from fileq.core.delivery import DeliveryCheck, naming_others, problem_of, unreadable
from fileq.core.errors import ConfigError
from fileq.core.units import format_duration
from fileq.files.manifest import ENTRIES_MAX, ManifestEntry, read_manifest
from fileq.producer.deliveries.checksums import ChecksumReader
from fileq.producer.deliveries.look import MANIFEST_MAX, DirectoryLook
from fileq.producer.deliveries.places import DeliveryPlace

RECENT_NS = 2_000_000_000


class Completion(Struct):
    """`missing` says what is still awaited; empty if nothing is. `listed` are the files of the manifest."""

    missing: str = ""
    listed: tuple[tuple[bytes, ManifestEntry], ...] = ()


class ManifestReader:
    """Reads each version of a manifest once: looks are frequent, and by hard links one file can be the manifest of many
    deliveries. Keeps as many entries as one manifest can have."""

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._kept: dict[tuple[int, ...], list[ManifestEntry] | ConfigError] = {}  # the last used is the last

    def entries(self, fd: int) -> list[ManifestEntry]:
        """Closes `fd`. Raises ConfigError for what is wrong with the manifest, and OSError."""
        with open(fd, "rb") as file:
            version = _version(os.fstat(fd))
            found = self._kept.pop(version, None)
            if found is None:
                try:
                    found = read_manifest(file.read(MANIFEST_MAX + 1), "the manifest")
                except ConfigError as error:
                    found = error
            # A file that changed a moment ago may change again without another time.
            if version == _version(os.fstat(fd)) and self._wall_ns() - version[-1] > RECENT_NS:
                self._keep(version, found)
        if isinstance(found, ConfigError):
            raise ConfigError(found.problems)
        return found

    def _keep(self, version: tuple[int, ...], found: list[ManifestEntry] | ConfigError) -> None:
        self._kept[version] = found
        while sum(map(_weight, self._kept.values())) > ENTRIES_MAX:
            del self._kept[next(iter(self._kept))]


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _weight(found: list[ManifestEntry] | ConfigError) -> int:
    return 1000 + (len(found) if isinstance(found, list) else 0)


def listed_files(
    place: DeliveryPlace, look: DirectoryLook, open_file: Callable[[bytes], int], reader: ManifestReader
) -> tuple[tuple[bytes, ManifestEntry], ...]:
    """The files of the manifest, if there is one. Raises ConfigError or OSError if it can't be read."""
    if look.manifest is None:
        return ()
    return tuple(_listed(place.directory, reader.entries(open_file(look.manifest))))


def completion_of(
    place: DeliveryPlace,
    look: DirectoryLook,
    listed: tuple[tuple[bytes, ManifestEntry], ...],
    *,
    members: int,
    arrived: frozenset[bytes],
    quiet_s: float,
) -> Completion:
    """`members` is the number of files that belong to the delivery. `arrived` are paths of members whose files are
    gone: workers move or delete files. `quiet_s` is the time without news."""
    complete = place.settings.complete
    if complete.marker is not None:
        return Completion("" if look.has_marker and members else f"the marker {complete.marker} did not come")
    if complete.files is not None:
        return Completion("" if members >= complete.files else f"{members} of {complete.files} files came")
    if complete.quiet is not None:
        awaited = f"files came or changed within the last {format_duration(complete.quiet)}"
        return Completion("" if quiet_s >= complete.quiet else awaited)
    if look.manifest is None:
        return Completion(f"no manifest {complete.manifest} came")
    absent = [path for path, _ in listed if path not in look.files and path not in arrived]
    if not absent:
        return Completion("", listed)
    return Completion(f"{len(absent)} of the {len(listed)} files of the manifest did not come", listed)


def _listed(directory: bytes, entries: list[ManifestEntry]) -> list[tuple[bytes, ManifestEntry]]:
    """The paths of a manifest are relative to its directory."""
    listed = [(os.path.normpath(os.path.join(directory, os.fsencode(entry.path))), entry) for entry in entries]
    outside = [entry.path for path, entry in listed if not path.startswith(directory + b"/")]
    if outside:
        raise ConfigError(f"the manifest lists {outside[0]!r:.120}, which is not below its directory")
    return listed


def problems_of(
    place: DeliveryPlace,
    completion: Completion,
    look: DirectoryLook,
    arrived: frozenset[bytes],
    checksums: ChecksumReader | None = None,
) -> list[DeliveryCheck]:
    """One check for each file of the manifest that is missing, differs or can't be read, or one for the delivery if it
    has no manifest and is not complete."""
    directory = shown(place.directory)
    if not completion.listed:
        if not completion.missing:
            return []
        waited = format_duration(place.settings.deadline or 0)
        return [DeliveryCheck(directory, directory, incomplete=f"after {waited} {completion.missing}")]
    found: list[tuple[DeliveryCheck, str]] = []
    for path, entry in completion.listed:
        file = look.files.get(path)
        if file is None and path in arrived:
            continue
        sha256 = checksums.found.get(path, "") if checksums is not None else ""
        why = checksums.failed.get(path, "") if checksums is not None else ""
        if path in look.linked:
            why = "a link leads to it"
        check = DeliveryCheck(directory, shown(path), entry.size, entry.sha256, sha256)
        problem = unreadable(check.path, why) if why else problem_of(check, file.size if file else None, sha256)
        if problem:
            found.append((check, problem))
    return naming_others(found)


def shown(path: bytes) -> str:
    """The path as text that fits into JSON, whatever its bytes are."""
    return path.decode(errors="backslashreplace")


def to_be_read(completion: Completion, look: DirectoryLook) -> Sequence[tuple[bytes, int]]:
    """The files whose checksums the manifest has, with their sizes. Not those of another size than it says: they are
    wrong anyway, and may be huge. To none of them a link leads: the checksum of its target would be shown to the
    sender."""
    return [
        (path, file.size)
        for path, entry in completion.listed
        if entry.sha256
        and (file := look.files.get(path)) is not None
        and path not in look.linked
        and entry.size in (None, file.size)
    ]
