"""The stage that compares contents, for `producer.identity: content`. With another setting there is none.

It reads each stable file that the ledger does not know by size, time and inode. If the hash is the one that the ledger
has for the newest version, the file is that version: touched, copied back or restored. Then the ledger gets the new
size, time and inode, and the next scan does not read the file again. Otherwise the file goes on, with its hash.

Each turn reads for a bounded time. Files take turns, a part of each, so a large one takes long and holds up no other.
It is opened anew for each part: one that was changed, replaced or deleted meanwhile is not read to its end. A scan that
finds it again, unchanged, does not begin anew. Files stay here until the broker has answered.
A kill -9 loses them from memory; the next scan finds them again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import Broker
from fileq.brokers.types import LedgerEntry
from fileq.files.beneath import open_regular
from fileq.files.status import FoundFile, found_at
from fileq.producer.finder.scan import ScanRules
from fileq.producer.ledger_stages import Change, FileIdentity, without_mark

CHUNK = 1 << 20
PART = 16  # chunks of one file, before it is the next one's turn
TURN_S = 0.1  # how long one turn reads
BATCH = 500  # files of one broker call
HASH_BYTES = 16


class CheckedBatch(Struct):
    """What one turn decided. `changed` files have to become stable again."""

    new: list[FoundFile]
    changed: list[FoundFile]


class ContentCheck:
    """The files whose contents are still to be compared, by path."""

    def __init__(
        self, broker: Broker, identity: FileIdentity, rules: ScanRules, monotonic: Callable[[], float]
    ) -> None:
        self._broker = broker
        self._identity = identity
        self._rules = rules
        self._monotonic = monotonic
        self._added: dict[bytes, FoundFile] = {}  # to be looked up
        self._unread: dict[bytes, tuple[FoundFile, LedgerEntry | None]] = {}
        self._read: dict[bytes, tuple[FoundFile, LedgerEntry | None]] = {}  # to be compared
        self._readings: dict[bytes, ContentReading] = {}  # of the unread files that were begun

    def __len__(self) -> int:
        return len(self._added) + len(self._unread) + len(self._read)

    def turn(self, stable: list[FoundFile]) -> CheckedBatch:
        """Takes files that are stable. Raises BrokerError; the next turn continues."""
        for file in stable:
            held = self._unread.get(file.path) or self._read.get(file.path)
            if held is None or not file.is_unchanged_since(held[0]):  # not a file that was found again
                for files in (self._added, self._unread, self._read, self._readings):
                    files.pop(file.path, None)  # it was another version
                self._added[file.path] = file
        while self._added:
            added = list(self._added.values())[:BATCH]
            for file, entry in zip(added, self._broker.lookup([file.path for file in added]), strict=True):
                del self._added[file.path]
                if entry is not None and self._identity.entry_if_known(file, entry) is not None:
                    self._rules.counts.known += 1  # by size, time and inode
                else:
                    self._unread[file.path] = (file, entry)
        # _compare() calls the broker and may raise, so it comes first: nothing that _read_some() returns gets lost.
        return CheckedBatch(self._compare(), self._read_some())

    def _compare(self) -> list[FoundFile]:
        """The files whose content is new. The ledger learns the present size, time and inode of the others."""
        new: list[FoundFile] = []
        changes: list[Change] = []
        for path, (file, entry) in self._read.items():
            same = self._identity.entry_if_same_content(file, entry) if entry is not None else None
            if entry is None or same is None:
                new.append(file)
            else:
                changes.append((path, entry, without_mark(same)))
        if changes:
            # An entry that has changed since it was read stays as it is. The next scan finds the file again.
            self._broker.update_ledger(changes)
        self._read.clear()
        self._rules.counts.known += len(changes)
        return new

    def _read_some(self) -> list[FoundFile]:
        """Returns the files that have changed meanwhile."""
        changed: list[FoundFile] = []
        until_s = self._monotonic() + TURN_S
        while self._unread and len(self._read) < BATCH:
            path, (file, entry) = next(iter(self._unread.items()))
            try:
                reading = self._readings.get(path)
                if reading is None:
                    reading = self._readings[path] = ContentReading(file, self._open)
                content = reading.read_part(lambda: self._monotonic() < until_s)
            except OSError:
                content = ""
            del self._unread[path]
            if content is None:
                self._unread[path] = (file, entry)  # the last one from now on
            else:
                self._readings.pop(path, None)
                now = self._rules.find(path)
                if now is not None and now.is_unchanged_since(file):
                    self._read[path] = (replace(file, content=content), entry)
                elif now is not None:
                    changed.append(now)
            if self._monotonic() >= until_s:
                break
        return changed

    def _open(self, path: bytes) -> int:
        return _open_followed(path) if self._rules.follows_links else open_regular(path, (self._rules.root,))


def _open_followed(path: bytes) -> int:
    """Also what is no regular file: its reader notices that, and a pipe must not block."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def content_of(file: FoundFile) -> str:
    """The hash of the whole file, in one go; "" if it cannot be read or changes meanwhile. Links are followed."""
    reading = ContentReading(file, _open_followed)
    try:
        while (content := reading.read_part()) is None:
            pass
        return content
    except OSError:
        return ""


class ContentReading:
    """A file that is read in parts. `open_file` opens it for reading, and decides which links are followed. `digest` is
    the kind of its hash; by default that of the ledger."""

    def __init__(self, file: FoundFile, open_file: Callable[[bytes], int], digest: hashlib._Hash | None = None) -> None:
        self._file = file
        self._open_file = open_file
        self._at = 0
        self._hash = digest or hashlib.blake2b(digest_size=HASH_BYTES)

    def read_part(self, goes_on: Callable[[], bool] = lambda: True) -> str | None:
        """The hash at the end of the file, "" if it is not the file that was found, None if there is more to read.
        Raises OSError."""
        fd = self._open_file(self._file.path)
        try:
            is_ended = False
            if self._is_unchanged(fd):
                for _ in range(PART):
                    chunk = os.pread(fd, min(CHUNK, self._file.size - self._at), self._at)
                    self._hash.update(chunk)
                    self._at += len(chunk)
                    is_ended = not chunk or self._at == self._file.size
                    if is_ended or not goes_on():
                        break
            if not self._is_unchanged(fd):
                return ""
            return self._hash.hexdigest() if is_ended else None
        finally:
            os.close(fd)

    def _is_unchanged(self, fd: int) -> bool:
        """Whether the open file is the one that was found."""
        return found_at(self._file.path, os.fstat(fd)).is_unchanged_since(self._file)
