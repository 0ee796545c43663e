"""Compares files with their checksums, in steps of a bounded time, so that large files do not hold up the producer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable

CHUNK = 1 << 20
TURN_S = 0.1  # how long one step reads


class ChecksumReader:
    """`files` are paths with how many bytes to read of each: a file that grows all the time has an end too. `open_file`
    opens one for reading, or raises OSError."""

    def __init__(
        self,
        files: Iterable[tuple[bytes, int]],
        open_file: Callable[[bytes], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._left = list(files)
        self._open_file = open_file
        self._monotonic = monotonic
        self._open: tuple[int, hashlib._Hash] | None = None
        self.began_s = monotonic()
        self.found: dict[bytes, str] = {}  # the checksum of each file that was read
        self.failed: dict[bytes, str] = {}  # why a file was not read

    @property
    def is_done(self) -> bool:
        return not self._left

    def step(self) -> None:
        until_s = self._monotonic() + TURN_S
        while self._left and self._monotonic() < until_s:
            path, size = self._left[-1]
            try:
                self._read(path, size)
            except OSError as error:
                self.failed[path] = error.strerror or str(error)
                self.close()
                self._left.pop()

    def give_up(self, why: str) -> None:
        """Reads no more; the files that are left have failed."""
        self.close()
        self.failed |= dict.fromkeys((path for path, _ in self._left), why)
        self._left.clear()

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[0])
            self._open = None

    def _read(self, path: bytes, size: int) -> None:
        """Reads a chunk of the file that is the last of those that are left; `size` bytes of it are left."""
        if self._open is None:
            self._open = self._open_file(path), hashlib.sha256()
        fd, digest = self._open
        if size > 0 and (chunk := os.read(fd, min(CHUNK, size))):
            digest.update(chunk)
            self._left[-1] = path, size - len(chunk)
            return
        self.found[path] = digest.hexdigest()
        self.close()
        self._left.pop()
