"""The markers of `producer.ready_suffix`: `a.pdf.done` says that `a.pdf` is complete. Never calls a broker.

A marker announces one version. It is removed when that version is enqueued, so the next file of the same name waits for
a marker of its own. Independent of that, a marker that is older than its file does not count: it announced an earlier
version, or came before the file was complete. This needs no memory, so it holds after a kill -9 and where the producer
may not remove markers.

The sender may write the next file and its marker at any time. So a marker is looked at before its file: if the file is
still the version that was enqueued, or gone, then the marker is not that of a later one. It is renamed before it is
removed: if it is another marker by then, it gets its name back.

What a kill -9 leaves: a marker whose version is enqueued; the next scan finds that the version is known, and removes
the marker. Or a marker under a private name, which no producer takes.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

from fileq.core.events import Emit, MarkersKept, SkipReason, ignore
from fileq.files.beneath import open_directory
from fileq.files.exclusive_move import Place, private_name, rename_exclusively, take
from fileq.files.status import FoundFile
from fileq.producer.finder.scan import ScanRules

KEPT_MAX = 50_000  # markers that could not be removed

_MarkerId: TypeAlias = tuple[int, int]


class Markers:
    """The markers of one scan_dir, whose names end in `suffix`."""

    def __init__(self, suffix: str, rules: ScanRules, emit: Emit = ignore) -> None:
        self._suffix = os.fsencode(suffix)
        self._rules = rules
        self._emit = emit
        self._has_reported = False
        self._kept: dict[bytes, _MarkerId] = {}  # path of the file → its marker that has done its part, and stayed

    def of(self, path: bytes) -> os.stat_result | None:
        """The marker of the file at this path, if it exists. To be read before the file is."""
        try:
            return os.stat(path + self._suffix, follow_symlinks=False)
        except OSError:
            return None

    def refusal(self, file: FoundFile, marker: os.stat_result | None) -> SkipReason | None:
        """Why the file is not to be enqueued yet; None if it is ready."""
        if marker is None:
            return SkipReason.UNMARKED
        if self._kept.get(file.path) == _id_of(marker) or self._is_older(marker, file):
            return SkipReason.OLD_MARKER
        return None

    def remove(self, enqueued: Iterable[FoundFile]) -> None:
        """Removes the markers of versions that are enqueued, or known from before."""
        for file in enqueued:
            marker = self.of(file.path)
            if marker is None or self._kept.get(file.path) == _id_of(marker):
                continue
            now = self._rules.find(file.path)
            if now is not None and not now.is_unchanged_since(file):
                continue  # perhaps it is the marker of this newer version
            if self._is_older(marker, file):
                continue
            try:
                self._remove(file.path, marker)
            except FileNotFoundError:
                pass  # another producer has removed it
            except OSError as error:
                self._keep(file.path, marker, error)

    def _is_older(self, marker: os.stat_result, file: FoundFile) -> bool:
        """Whether the file was written to after its marker was made or touched. Who copies a file may give it any
        modification time, but no later change time than now; a later chmod changes only the change time. So the earlier
        of both is when it was last written to, or before."""
        if marker.st_ctime_ns >= file.mtime_ns:
            return False
        try:
            changed_ns = os.stat(file.path, follow_symlinks=self._rules.follows_links).st_ctime_ns
        except OSError:
            return True
        return marker.st_ctime_ns < changed_ns

    def _remove(self, path: bytes, marker: os.stat_result) -> None:
        directory, name = os.path.split(path + self._suffix)
        if stat.S_ISDIR(marker.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        opened = open_directory(directory, (self._rules.root,), follows_links=self._rules.follows_links)
        try:
            private = private_name(f"marker{secrets.token_hex(12)}")
            take(opened, name, private)
            if _id_of(os.stat(private, dir_fd=opened, follow_symlinks=False)) == _id_of(marker):
                os.unlink(private, dir_fd=opened)
                return
            with suppress(FileExistsError):  # there is a still newer one
                rename_exclusively(Place(opened, private), Place(opened, name))
                return
            os.unlink(private, dir_fd=opened)
        finally:
            os.close(opened)

    def _keep(self, path: bytes, marker: os.stat_result, error: OSError) -> None:
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[path] = _id_of(marker)
        if not self._has_reported:
            self._has_reported = True
            self._emit(MarkersKept(os.fsdecode(path + self._suffix), error.strerror or str(error)))


def _id_of(marker: os.stat_result) -> _MarkerId:
    """A marker that is made again or touched is another one. A rename changes neither of these."""
    return marker.st_ino, marker.st_mtime_ns
