"""A file as the file system described it at one moment. Reads nothing."""

from __future__ import annotations

import os

from msgspec import Struct

from fileq.files.version import make_signature


class FoundFile(Struct, frozen=True, gc=False):
    """A regular file at the moment of its last `stat`. `content` is its hash, "" if it was not read."""

    path: bytes
    size: int
    mtime_ns: int
    inode: int
    content: str = ""

    @property
    def signature(self) -> str:
        """The short form: size and modification time."""
        return make_signature(self.size, self.mtime_ns)

    def is_unchanged_since(self, earlier: FoundFile) -> bool:
        """Same size, modification time and inode: the content was neither written to nor replaced."""
        return (self.size, self.mtime_ns, self.inode) == (earlier.size, earlier.mtime_ns, earlier.inode)


def found_at(path: bytes, status: os.stat_result) -> FoundFile:
    return FoundFile(path, status.st_size, status.st_mtime_ns, status.st_ino)
