"""Compares files with their checksums, in steps of a bounded time, so that large files do not hold up the producer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable

from fileq.files.manifest import ManifestEntry

CHUNK = 1 << 20
TURN_S = 0.1  # how long one step reads


class ChecksumReader:
    """`files` are paths with what the manifest says of them. `open_file` opens one for reading, or raises OSError."""

    def __init__(
        self,
        files: Iterable[tuple[bytes, ManifestEntry]],
        open_file: Callable[[bytes], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._left = [(path, entry) for path, entry in files if entry.sha256]
        self._open_file = open_file
        self._monotonic = monotonic
        self._open: tuple[int, hashlib._Hash] | None = None
        self.found: dict[bytes, str] = {}  # the checksum of each file that was read
        self.failed: dict[bytes, str] = {}  # why a file was not read

    @property
    def is_done(self) -> bool:
        return not self._left

    def step(self) -> None:
        until_s = self._monotonic() + TURN_S
        while self._left and self._monotonic() < until_s:
            path, _ = self._left[-1]
            try:
                self._read(path)
            except OSError as error:
                self.failed[path] = error.strerror or str(error)
                self.close()
                self._left.pop()

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[0])
            self._open = None

    def _read(self, path: bytes) -> None:
        if self._open is None:
            self._open = self._open_file(path), hashlib.sha256()
        fd, digest = self._open
        if chunk := os.read(fd, CHUNK):
            digest.update(chunk)
            return
        self.found[path] = digest.hexdigest()
        self.close()
        self._left.pop()
