"""What the ledger knows of files: which versions of them, and which of them no longer exist.

FileIdentity says what makes a file a new version. LedgerLookup drops the scanned files whose version the ledger knows
already, and removes their markers. LedgerSweep forgets files that no longer exist. None of them enqueues.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice

from msgspec.structs import replace

from fileq.brokers.catalog import Table
from fileq.brokers.protocol import Broker, FullBroker
from fileq.brokers.types import LedgerEntry
from fileq.core.events import Emit, InodesNotCompared, ignore
from fileq.core.job import SignatureParts, Version, signature_text, split_signature
from fileq.files.status import FoundFile, ScanDirMounts, keeps_inodes
from fileq.producer.finder.scan import ScanRules
from fileq.producer.markers import Markers
from fileq.producer.stability import ClockGuard

INODE_MAX = 2**63 - 1  # a job has room for no more


class FileIdentity:
    """Decides what makes a file a new version, by `producer.identity`:

    stat     another size or modification time
    inode    these, or another inode; on a file system that does not keep inodes as `stat`
    content  another content: a file whose size, time or inode is another is read, see content_check.py

    Reads no file and calls no broker. Reports once for each type of file system that its inodes are not compared."""

    def __init__(self, setting: str, mounts: ScanDirMounts, emit: Emit = ignore) -> None:
        self._setting = setting
        self._mounts = mounts
        self._emit = emit
        self._reported: set[str] = set()

    def inode(self, file: FoundFile) -> int:
        """The inode if it is part of the file's version, else 0."""
        if self._setting == "stat" or file.inode > INODE_MAX:
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
        return self.inode(file) if self._setting == "inode" else 0

    def version(self, file: FoundFile) -> Version:
        device = self._mounts.device(os.path.dirname(file.path))
        return Version(file.path, signature_text(file.signature, self.inode(file), file.content), device)

    def recorded(self, files: Iterable[FoundFile]) -> list[tuple[bytes, str]]:
        """The path of each file, and the signature that the ledger has of it if the file is known and unchanged."""
        if self._setting == "stat":
            return [(file.path, file.signature) for file in files]
        return [(file.path, f"{file.size}-{file.mtime_ns}-i{file.inode}") for file in files]

    def entry_if_known(self, file: FoundFile, entry: LedgerEntry) -> LedgerEntry | None:
        """The entry as it should be, if it knows this version of the file by its size, time and inode; else None. A
        version that is recorded without an inode gets one. With `stat`, an inode that is no longer right is removed, so
        that `inode` can be set again later."""
        short = file.signature
        exact = short if self._setting == "stat" else signature_text(short, file.inode)
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
        if not inode and self._setting != "stat":
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


PROBE_S = 5.0  # after this time without a lookup, the broker is called anyway, to notice an outage


class LedgerLookup:
    """Drops the files whose version the ledger knows already. `is_answered`: the last call did not fail.

    It keeps the scanned files until the broker has answered, so an outage loses none of them. They are at most one step
    of a scan: while a call is unanswered, nothing more is scanned. A kill -9 loses them from memory; the next scan
    finds them."""

    def __init__(
        self, broker: Broker, identity: FileIdentity, rules: ScanRules, markers: Markers | None, now_s: float
    ) -> None:
        self.is_answered = True
        self._broker = broker
        self._rules = rules
        self._identity = identity
        self._markers = markers
        self._unanswered: list[FoundFile] = []
        self._answered_s = now_s

    def __len__(self) -> int:
        return len(self._unanswered)

    def turn(self, now_s: float, scanned: list[FoundFile]) -> list[FoundFile]:
        """The files whose version is new. Raises BrokerError; the next turn repeats the call."""
        self._unanswered += scanned
        self.is_answered = False
        new: list[FoundFile] = []
        if self._unanswered:
            new = self._look_up()
            self._answered_s = now_s
        elif now_s - self._answered_s >= PROBE_S:
            self._broker.lookup([self._rules.root])
            self._answered_s = now_s
        self.is_answered = True
        return new

    def require_answer(self) -> None:
        """A broker call failed elsewhere: the next turn calls the broker, so that only an answer ends the outage."""
        self._answered_s = float("-inf")

    def _look_up(self) -> list[FoundFile]:
        files, counts = self._unanswered, self._rules.counts
        # Most files are known and unchanged. Only the entries of the others are read and decoded.
        known = self._broker.knows(self._identity.recorded(files))
        unsure = [file for file, is_known in zip(files, known, strict=True) if not is_known]
        new: list[FoundFile] = []
        changes: list[Change] = []
        entries = self._broker.lookup([file.path for file in unsure]) if unsure else ()
        for file, entry in zip(unsure, entries, strict=True):
            after = self._identity.entry_if_known(file, entry) if entry is not None else None
            if after is None:
                new.append(file)
                after = entry
            if after is not None and after.missing_since_ms:  # the file has come back
                after = without_mark(after)
            if entry is not None and after is not entry:
                changes.append((file.path, entry, after))
        if changes:
            self._broker.update_ledger(changes)
        self._unanswered = []
        counts.found += len(files)
        counts.known += len(files) - len(new)
        if self._markers is not None:  # a producer that was killed may have left them
            paths = {file.path for file in new}
            self._markers.remove(file for file in files if file.path not in paths)
        return new


# files that no longer exist

DAY_MS = 24 * 3600 * 1000
SWEEP_INTERVAL_MS = 3600 * 1000
SWEEPS = Table[int]("sweeps", int)  # when each began, in ms
PAGE = 500
Change = tuple[bytes, LedgerEntry, LedgerEntry | None]


class LedgerSweep:
    """Forgets files that no longer exist: the only way in which the ledger shrinks. Never touches a file. Runs at most
    one pass over the ledger at a time, one page per turn.

    An entry is removed when its file was missing for a whole day, on the device where it was last seen, and no scan had
    an error in between. A volume that is not mounted shows another device, so none of its files are forgotten. A kill
    -9 leaves the marks of missing files in the ledger; the next sweep continues from them.

    A document on the broker has the time of the last sweep, so that producers of the same files, and runs with `--once`
    one after another, do not repeat it within the hour."""

    def __init__(
        self, broker: FullBroker, rules: ScanRules, mounts: ScanDirMounts, clock: ClockGuard, forget_after_ms: int
    ) -> None:
        self._broker = broker
        self._rules = rules
        self._mounts = mounts
        self._clock = clock
        self._forget_after_ms = forget_after_ms
        self._pass: Iterator[None] | None = None
        self._is_planned = False
        self._next_sweep_ms = 0
        # The name of the document. Producers that take the same files of the same directory share it.
        self._name = sha256(repr((rules.root, rules.filter.patterns)).encode()).hexdigest()[:32]
        # Whether the ledger may hold marks, now and after the pass that is running. At start that is unknown.
        self._may_have_marks = self._leaves_marks = True

    @property
    def is_running(self) -> bool:
        return self._is_planned or self._pass is not None

    def plan(self, *, is_complete: bool) -> None:
        """A whole scan ended. After a complete one missing files are marked or forgotten, at most once an hour. After
        one with errors all marks are cleared, so that the day of the missing files starts anew."""
        if not is_complete:
            self._is_planned = False
            if self._may_have_marks:
                self._leaves_marks = False
                self._pass = self.clear_missing_marks()
        elif self._clock.steady_ms() >= self._next_sweep_ms:
            self._is_planned = True

    def turn(self) -> None:
        """Handles one page. A BrokerError ends the pass; the next one restarts."""
        if self._is_planned:
            self._begin()
        running, self._pass = self._pass, None
        for _ in running or ():
            self._pass = running
            return
        if running is not None:
            self._may_have_marks = self._leaves_marks

    def _begin(self) -> None:
        """Starts a sweep, unless there was one within the hour, of whichever producer of the same files."""
        now_ms = self._clock.steady_ms()
        last_ms = SWEEPS.get(self._broker, self._name) or 0
        if last_ms > now_ms:
            last_ms = 0  # the time was written by a clock that was ahead
        self._next_sweep_ms = last_ms + SWEEP_INTERVAL_MS
        if self._next_sweep_ms <= now_ms:
            SWEEPS.put(self._broker, self._name, now_ms)
            self._next_sweep_ms = now_ms + SWEEP_INTERVAL_MS
            self._may_have_marks = self._leaves_marks = True
            self._pass = self.sweep(now_ms)
        self._is_planned = False

    def sweep(self, now_ms: int) -> Iterator[None]:
        """Marks or forgets the missing files that this producer covers, page by page. The broker skips an entry that
        changed since it was read: its file was found meanwhile."""
        for page in self._pages():
            self._mounts.refresh()
            covered = ((path, entry) for path, entry in page if self._rules.covers(path))
            changes = [change for path, entry in covered for change in self._changes(path, entry, now_ms)]
            # A volume that was unmounted during the checks makes its files look missing: this page changes nothing.
            if not self._mounts.refresh() and changes:
                self._broker.update_ledger(changes)
            yield

    def clear_missing_marks(self) -> Iterator[None]:
        """Removes every mark, page by page. Forgets nothing."""
        for page in self._pages():
            if changes := [(path, entry, without_mark(entry)) for path, entry in page if entry.missing_since_ms]:
                self._broker.update_ledger(changes)
            yield

    def _pages(self) -> Iterator[list[tuple[bytes, LedgerEntry]]]:
        entries = iter(self._broker.ledger(self._rules.root.rstrip(b"/") + b"/"))
        while page := list(islice(entries, PAGE)):
            yield page

    def _changes(self, path: bytes, entry: LedgerEntry, now_ms: int) -> Iterator[Change]:
        """How the entry changes, if it does."""
        device = self._mounts.device(os.path.dirname(path))
        after: LedgerEntry | None
        try:
            os.lstat(path)
            after = without_mark(entry, device)
        except (FileNotFoundError, NotADirectoryError):
            if device != entry.device:
                after = without_mark(entry)
            elif not entry.missing_since_ms:
                after = LedgerEntry(entry.versions, now_ms, device)
            elif now_ms - entry.missing_since_ms >= self._forget_after_ms:
                after = None
            else:
                return
        except (OSError, ValueError):
            return  # whether it exists is unknown, which is no reason to forget it
        if after != entry:
            yield path, entry, after


def without_mark(entry: LedgerEntry, device: str = "") -> LedgerEntry:
    """The entry of a file that exists, on this device if one is given."""
    return LedgerEntry(entry.versions, device=device or entry.device)
