"""Walks a directory tree in bounded steps. Never opens a file, never remembers the tree.

One directory at a time, one `stat` per file, a bounded number of entries per step. An entry that cannot be read is
counted and passed over. A walk that may have missed files because of it is not complete.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from fileq.core.file_events import SkipReason
from fileq.producer.finder.found_file import FoundFile, found_at
from fileq.producer.finder.rules import ScanRules

STEP_ENTRIES = 1_000


class DirectoryWatch(Protocol):
    """Receives each directory before it is listed, so that no file falls between the listing and the watch."""

    def watch(self, directory: bytes) -> None: ...


class DirectoryWalk:
    """One pass over the tree below `top`. Holds the directories still to enter and the open listing of one."""

    def __init__(self, rules: ScanRules, top: bytes, watch: DirectoryWatch, now_s: float = 0.0) -> None:
        rules.refresh()
        self.top = top
        self.started_s = now_s
        self.is_done = False
        self.is_complete = True  # nothing was missed so far
        self.found_count = 0
        self.skipped: Counter[SkipReason] = Counter()
        self.error = ""  # why `top` itself cannot be read
        self._rules = rules
        self._watch = watch
        self._stack = [top]
        # The directory being listed and its path below scan_dir.
        self._directory = top
        self._prefix = ""
        self._listing: _Listing | None = None

    @property
    def is_whole(self) -> bool:
        return self.top == self._rules.root

    def step(self) -> list[FoundFile]:
        """Reads the next entries and returns the files among them that count, often none."""
        found: list[FoundFile] = []
        left = STEP_ENTRIES
        before = self._rules.counts.skipped.copy()
        while left > 0 and not self.is_done:
            if self._listing is None:
                left -= 1
                self._open_next()
            else:
                left -= self._read(self._listing, left, found)
        self.found_count += len(found)
        self.skipped += self._rules.counts.skipped - before
        return found

    def close(self) -> None:
        self.is_done = True
        self._close_listing()

    def _open_next(self) -> None:
        if not self._stack:
            self.is_done = True
            return
        directory = self._stack.pop()
        try:
            self._watch.watch(directory)
            self._listing = os.scandir(directory)
        except OSError as error:
            self._skip_error(error, directory)
            if directory == self.top:
                self.error = error.strerror or str(error)
        else:
            self._directory, self._prefix = directory, self._rules.prefix_of(directory)

    def _read(self, listing: _Listing, most: int, found: list[FoundFile]) -> int:
        """The hot loop of every scan: a plain file costs one `stat` and no call that is not needed."""
        directory, prefix = self._directory, self._prefix
        takes = self._rules.takes
        seen = 0
        try:
            for entry in islice(listing, most):
                seen += 1
                try:
                    if not entry.is_file(follow_symlinks=False):
                        self._read_special(entry, found)
                    elif takes(prefix, directory, entry.name):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found.append(found_at(entry.path, status))
                        else:  # another kind of entry has taken its place since it was listed
                            self._rules.regular_file(entry.path, status)
                except OSError as error:
                    self._skip_error(error, entry.path)
        except OSError as error:  # the listing itself failed
            self._skip_error(error, directory)
        if seen < most:
            self._close_listing()
        return max(seen, 1)

    def _read_special(self, entry: os.DirEntry[bytes], found: list[FoundFile]) -> None:
        """Directories, links, pipes: every entry that is not plainly a file."""
        rules = self._rules
        if entry.is_symlink() and not rules.may_follow(entry.path):
            return
        status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            if rules.enters(self._prefix, entry.path, entry.name):
                self._stack.append(entry.path)
        elif rules.takes(self._prefix, self._directory, entry.name):
            file = rules.regular_file(entry.path, status)
            if file is not None:
                found.append(file)

    def _close_listing(self) -> None:
        if self._listing is not None:
            self._listing.close()
            self._listing = None

    def _skip_error(self, error: OSError, path: bytes) -> None:
        if self._rules.skip_error(error, path):
            self.is_complete = False


class _Listing(Protocol):
    """What os.scandir returns."""

    def __iter__(self) -> Iterator[os.DirEntry[bytes]]: ...
    def close(self) -> None: ...
