"""The stage that compares contents, for `producer.identity: content`. With another setting files pass straight through.

It reads each stable file that the ledger does not know by size, time and inode. If the hash is the one that the ledger
has for the newest version, the file is that version: touched, copied back or restored. Then the ledger gets the new
size, time and inode, and the next scan does not read the file again. Otherwise the file goes on, with its hash.

Each turn reads for a bounded time, so a large file takes several turns. Files stay here until the broker has answered.
A kill -9 loses them from memory; the next scan finds them again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import Broker
from fileq.brokers.types import LedgerEntry
from fileq.producer.counts import ProducerCounts
from fileq.producer.finder.found_file import FoundFile, found_at
from fileq.producer.finder.rules import ScanRules
from fileq.producer.identity import FileIdentity
from fileq.producer.ledger_sweep import Change, without_mark

CHUNK = 1 << 20
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
        self,
        broker: Broker,
        identity: FileIdentity,
        rules: ScanRules,
        counts: ProducerCounts,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._identity = identity
        self._rules = rules
        self._counts = counts
        self._monotonic = monotonic
        self._added: dict[bytes, FoundFile] = {}  # to be looked up
        self._unread: dict[bytes, tuple[FoundFile, LedgerEntry | None]] = {}
        self._read: dict[bytes, tuple[FoundFile, LedgerEntry | None]] = {}  # to be compared
        self._reading: ContentReading | None = None  # the first of the unread files

    def __len__(self) -> int:
        return len(self._added) + len(self._unread) + len(self._read)

    def turn(self, stable: list[FoundFile]) -> CheckedBatch:
        """Takes files that are stable. Raises BrokerError; the next turn continues."""
        if not self._identity.is_by_content:
            return CheckedBatch(stable, [])
        for file in stable:
            self._drop(file.path)  # it was another version
            self._added[file.path] = file
        while self._added:
            self._look_up(list(self._added.values())[:BATCH])
        # _compare() calls the broker and may raise, so it comes first: nothing that _read_some() returns gets lost.
        return CheckedBatch(self._compare(), self._read_some())

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _drop(self, path: bytes) -> None:
        if self._reading is not None and self._reading.file.path == path:
            self.close()
        for files in (self._added, self._unread, self._read):
            files.pop(path, None)

    def _look_up(self, files: list[FoundFile]) -> None:
        """Drops the files that the ledger knows by size, time and inode."""
        for file, entry in zip(files, self._broker.lookup([file.path for file in files]), strict=True):
            del self._added[file.path]
            if entry is not None and self._identity.entry_if_known(file, entry) is not None:
                self._counts.known += 1
            else:
                self._unread[file.path] = (file, entry)

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
        self._counts.known += len(changes)
        return new

    def _read_some(self) -> list[FoundFile]:
        """Returns the files that have changed meanwhile."""
        changed: list[FoundFile] = []
        until_s = self._monotonic() + TURN_S
        while self._unread and len(self._read) < BATCH:
            path, (file, entry) = next(iter(self._unread.items()))
            content = self._step(file)
            if content is not None:
                self.close()
                del self._unread[path]
                now = self._rules.find(path)
                if now is not None and now.is_unchanged_since(file):
                    self._read[path] = (replace(file, content=content), entry)
                elif now is not None:
                    changed.append(now)
            if self._monotonic() >= until_s:
                break
        return changed

    def _step(self, file: FoundFile) -> str | None:
        """Reads a part of the file. The hash at its end; "" for a file that cannot be read, which has none."""
        try:
            if self._reading is None:
                self._reading = ContentReading(file, follows_links=self._rules.follows_links)
                if not self._reading.is_unchanged():
                    return ""
            return self._reading.step()
        except OSError:
            return ""


def content_of(file: FoundFile, *, follows_links: bool) -> str:
    """The hash of the whole file, in one go; "" if it cannot be read or changes meanwhile."""
    try:
        reading = ContentReading(file, follows_links=follows_links)
    except OSError:
        return ""
    try:
        if not reading.is_unchanged():
            return ""
        while (content := reading.step()) is None:
            pass
        return content if reading.is_unchanged() else ""
    except OSError:
        return ""
    finally:
        reading.close()


class ContentReading:
    """A file that is being read."""

    def __init__(self, file: FoundFile, *, follows_links: bool) -> None:
        self.file = file
        self._left = file.size
        self._hash = hashlib.blake2b(digest_size=HASH_BYTES)
        # A pipe that has taken the name must not block the producer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows_links else os.O_NOFOLLOW)
        self._fd = os.open(file.path, flags)

    def is_unchanged(self) -> bool:
        """Whether the open file is the one that was found."""
        return found_at(self.file.path, os.fstat(self._fd)).is_unchanged_since(self.file)

    def step(self) -> str | None:
        part = os.read(self._fd, min(CHUNK, self._left))
        self._hash.update(part)
        self._left -= len(part)
        return self._hash.hexdigest() if not part or not self._left else None

    def close(self) -> None:
        os.close(self._fd)
