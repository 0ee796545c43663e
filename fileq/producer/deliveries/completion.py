"""Decides whether a delivery is complete, and what is wrong with its files. Reads a manifest, nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fileq.core.delivery import DeliveryCheck, naming_others, problem_of
from fileq.core.errors import ConfigError
from fileq.core.units import format_duration
from fileq.files.manifest import ManifestEntry, read_manifest
from fileq.producer.deliveries.look import MANIFEST_MAX, DirectoryLook
from fileq.producer.deliveries.places import DeliveryPlace
from fileq.producer.finder.found_file import FoundFile


class Completion(Struct):
    """`missing` says what is still awaited; empty if nothing is. `listed` are the files of the manifest."""

    missing: str = ""
    listed: tuple[tuple[bytes, ManifestEntry], ...] = ()


def listed_files(place: DeliveryPlace, look: DirectoryLook) -> tuple[tuple[bytes, ManifestEntry], ...]:
    """The files of the manifest, if there is one. Raises ConfigError or OSError if it can't be read."""
    return tuple(_listed(place.directory, look.manifest)) if look.manifest is not None else ()


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


def _listed(directory: bytes, manifest: bytes) -> list[tuple[bytes, ManifestEntry]]:
    """The paths of a manifest are relative to its directory."""
    with open(manifest, "rb") as file:
        raw = file.read(MANIFEST_MAX + 1)
    entries = read_manifest(raw, os.fsdecode(manifest))
    listed = [(os.path.normpath(os.path.join(directory, os.fsencode(entry.path))), entry) for entry in entries]
    outside = [entry.path for path, entry in listed if not path.startswith(directory + b"/")]
    if outside:
        raise ConfigError(f"{os.fsdecode(manifest)} lists {outside[0]!r}, which is not below its directory")
    return listed


def problems_of(
    place: DeliveryPlace,
    completion: Completion,
    files: Mapping[bytes, FoundFile],
    arrived: frozenset[bytes],
    checksums: Mapping[bytes, str],
) -> list[DeliveryCheck]:
    """One check for each file of the manifest that is missing or differs, or one for the delivery if it has no
    manifest and is not complete."""
    directory = os.fsdecode(place.directory)
    if not completion.listed:
        if not completion.missing:
            return []
        waited = format_duration(place.settings.deadline or 0)
        return [DeliveryCheck(directory, directory, incomplete=f"after {waited} {completion.missing}")]
    found: list[tuple[DeliveryCheck, str]] = []
    for path, entry in completion.listed:
        file = files.get(path)
        if file is None and path in arrived:
            continue
        sha256 = checksums.get(path, "")
        check = DeliveryCheck(directory, _shown(path), entry.size, entry.sha256, sha256)
        if problem := problem_of(check, file.size if file is not None else None, sha256):
            found.append((check, problem))
    return naming_others(found)


def _shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def to_be_read(completion: Completion, files: Mapping[bytes, FoundFile]) -> Sequence[tuple[bytes, ManifestEntry]]:
    """The files whose checksums the manifest has."""
    return [(path, entry) for path, entry in completion.listed if path in files and entry.sha256]
