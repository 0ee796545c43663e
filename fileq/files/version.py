"""The signature of a version of a file, from its `stat`. Every process computes it here, so that all of them agree.

A signature changes when the size or the modification time changes and, where inodes are compared, when another file
takes the place of this one. core/job.py describes the text. The ledger, the job and the check before a handler runs
compare signatures. Only a producer with `producer.identity: content` reads contents.
"""

from __future__ import annotations

import os

from msgspec import Struct

from fileq.core.job import is_same_version, signature_text, split_signature
from fileq.files.mounts import filesystem_type, keeps_inodes


def make_signature(size: int, mtime_ns: int) -> str:
    return f"{size}-{mtime_ns}"


def signature_of(status: os.stat_result) -> str:
    """The short form: size and modification time."""
    return make_signature(status.st_size, status.st_mtime_ns)


def changed_version(path: bytes, status: os.stat_result, expected: str) -> str | None:
    """The version that the file at this path is now; None if it is still the expected one. The inode counts only if the
    expected version has one and this machine sees a file system that keeps inodes: over NFS a file has another number
    than on the server. The mount table is read only if the inode is another one."""
    short = signature_of(status)
    if expected in (short, signature_text(short, status.st_ino)):
        return None
    is_kept = split_signature(expected).inode != "" and keeps_inodes(filesystem_type(path))
    now = signature_text(short, status.st_ino if is_kept else 0)
    return None if is_same_version(now, expected) else now


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
