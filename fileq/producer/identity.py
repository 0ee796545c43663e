"""What makes a file a new version (`producer.identity`). Reads no file and calls no broker.

stat     another size or modification time
inode    these, or another inode; on a file system that does not keep inodes as `stat`
content  another content: a file whose size, time or inode is another is read, see content_check.py
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from fileq.brokers.types import LedgerEntry
from fileq.core.events import Emit, InodesNotCompared, ignore
from fileq.core.job import SignatureParts, Version, signature_text, split_signature
from fileq.files.mounts import ScanDirMounts, keeps_inodes
from fileq.files.version import FoundFile

STAT, INODE, CONTENT = "stat", "inode", "content"
INODE_MAX = 2**63 - 1  # a job has room for no more


class FileIdentity:
    """Reports once for each type of file system that its inodes are not compared."""

    def __init__(self, setting: str, mounts: ScanDirMounts, emit: Emit = ignore) -> None:
        self._setting = setting
        self._mounts = mounts
        self._emit = emit
        self._reported: set[str] = set()

    @property
    def is_by_content(self) -> bool:
        return self._setting == CONTENT

    def inode(self, file: FoundFile) -> int:
        """The inode if it is part of the file's version, else 0."""
        if self._setting == STAT or file.inode > INODE_MAX:
            return 0
        directory = os.path.dirname(file.path)
        filesystem = self._mounts.filesystem(directory)
        if keeps_inodes(filesystem):
            return file.inode
        if filesystem not in self._reported:
            self._reported.add(filesystem)
            self._emit(InodesNotCompared(os.fsdecode(directory), filesystem or "unknown", self._setting))
        return 0

    def inode_for_job(self, file: FoundFile) -> int:
        """The inode that a worker compares, else 0."""
        return self.inode(file) if self._setting == INODE else 0

    def version(self, file: FoundFile) -> Version:
        device = self._mounts.device(os.path.dirname(file.path))
        return Version(file.path, signature_text(file.signature, self.inode(file), file.content), device)

    def recorded(self, files: Iterable[FoundFile]) -> list[tuple[bytes, str]]:
        """The path of each file, and the signature that the ledger has of it if the file is known and unchanged."""
        if self._setting == STAT:
            return [(file.path, file.signature) for file in files]
        return [(file.path, f"{file.size}-{file.mtime_ns}-i{file.inode}") for file in files]

    def entry_if_known(self, file: FoundFile, entry: LedgerEntry) -> LedgerEntry | None:
        """The entry as it should be, if it knows this version of the file by its size, time and inode; else None.

        A version that is recorded without an inode gets one. With `stat`, an inode that is no longer right is removed,
        so that `inode` can be set again later."""
        short = file.signature
        exact = short if self._setting == STAT else signature_text(short, file.inode)
        hashed = f"{exact}-c"
        if any(known == exact or known.startswith(hashed) for known, _ in entry.versions):
            return entry
        candidates = [(i, parts) for i, parts in _parts_of(entry) if parts.short == short]
        if not candidates:
            return None
        if any(parts.inode == str(file.inode) for _, parts in candidates):
            return entry
        inode = self.inode(file)
        place, parts = next((c for c in candidates if not (inode and c[1].inode)), (-1, None))
        if parts is None:
            return None
        if not inode and self._setting != STAT:
            return entry  # another producer may see this file on a file system that keeps its inode
        return _with_signature(entry, place, signature_text(short, inode, parts.content))

    def entry_if_same_content(self, file: FoundFile, entry: LedgerEntry) -> LedgerEntry | None:
        """The entry with the present size, time and inode of the file, if its newest version has this content; else
        None. A version that is recorded without a hash is the same if size and time are."""
        if not file.content:
            return None
        for place, parts in _parts_of(entry):
            is_newest = place == 0 and parts.content == file.content
            if is_newest or (not parts.content and parts.short == file.signature):
                return _with_signature(entry, place, self.version(file).signature)
        return None


def _with_signature(entry: LedgerEntry, place: int, signature: str) -> LedgerEntry:
    """The entry with another signature for one of its versions, which keeps its job; the same object if it has it."""
    if entry.versions[place][0] == signature:
        return entry
    versions = list(entry.versions)
    versions[place] = (signature, versions[place][1])
    return replace(entry, versions=tuple(versions))


def _parts_of(entry: LedgerEntry) -> Iterator[tuple[int, SignatureParts]]:
    return enumerate(split_signature(signature) for signature, _ in entry.versions)
