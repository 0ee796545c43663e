"""Which directory is a delivery, and which of its files are about the delivery instead of being part of it.

Reads names only. A directory inside a delivery belongs to that delivery, also if its own path would match.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import Struct

from fileq.config.delivery_settings import FAILED_MARKER, DeliverySettings
from fileq.files.globs import Globs
from fileq.files.paths import MAX_DEPTH

_REMEMBERED_MAX = 10_000


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


class DeliveryPlace(Struct, frozen=True):
    """The directory of a delivery, absolute, and its settings."""

    directory: bytes
    settings: DeliverySettings

    def is_control_file(self, name: bytes) -> bool:
        """Whether a file of this name, at the delivery's own level, is never a job."""
        complete = self.settings.complete
        if complete.marker is not None and name == os.fsencode(complete.marker):
            return True
        if complete.manifest is not None and is_manifest(complete.manifest, name):
            return True
        return bool(self.settings.done_marker) and _text(name) in (self.settings.done_marker, FAILED_MARKER)


def is_manifest(pattern: str, name: bytes) -> bool:
    return Globs([pattern]).match("", _text(name))


class DeliveryPlaces:
    """`root` is the absolute path of scan_dir. The first entry of the configuration that matches a directory wins."""

    def __init__(self, settings: Sequence[DeliverySettings], root: bytes) -> None:
        self._root = root.rstrip(b"/")
        self._kinds = [(Globs([one.match.rstrip("/")]), one) for one in settings]
        self._remembered: dict[bytes, DeliveryPlace | None] = {}
        self._announced: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def of(self, directory: bytes) -> DeliveryPlace | None:
        """The delivery that the files of this directory are part of."""
        if not self._kinds:
            return None
        if directory not in self._remembered:
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[directory] = self._find(directory)
        return self._remembered[directory]

    def is_control_file(self, directory: bytes, name: bytes) -> bool:
        """Whether this file is never a job. Remembers that the directory has a file about its delivery."""
        place = self.of(directory)
        if place is None or place.directory != directory or not place.is_control_file(name):
            return False
        self._announced.add(directory)
        return True

    def take_announced(self) -> set[bytes]:
        """The directories in which files about their delivery were found since the last call."""
        announced, self._announced = self._announced, set()
        return announced

    def _find(self, directory: bytes) -> DeliveryPlace | None:
        """The outermost directory that matches."""
        names = directory[len(self._root) :].strip(b"/").split(b"/")[:MAX_DEPTH]
        for depth, name in enumerate(names):
            if not name:
                return None
            prefix = "".join(f"{_text(above)}/" for above in names[:depth])
            for globs, settings in self._kinds:
                if globs.match(prefix, _text(name)):
                    return DeliveryPlace(b"/".join((self._root, *names[: depth + 1])), settings)
        return None
