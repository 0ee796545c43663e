"""Walks a directory tree and finds the files that count. Never opens one, never remembers the tree.

One directory at a time, one stat a file, a bounded number of entries a step. Whatever is wrong with one entry is
reported and passed over: an unreadable directory, a file that vanished, a loop of links, a pipe. A walk that passed
over something it could not read is not complete, and says so.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol, TypeAlias

from msgspec import Struct

from fileq.config import Config
from fileq.core.events import SkipReason
from fileq.files.globs import FileFilter
from fileq.files.version import make_signature

STEP = 500  # entries looked at in one step
Report = Callable[[SkipReason, bytes], None]
Entered = Callable[[bytes], None]
# What brokers/sqlite puts beside its database.
_BESIDE = rb"([.]backup-v[0-9]+([.]unfinished)?)?(-wal|-shm|-journal|-lock|-listen)?"
_Chain: TypeAlias = "tuple[tuple[int, int], _Chain] | None"


class Found(Struct, frozen=True, gc=False):
    """A regular file as it looked when it was seen."""

    path: bytes
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int

    @property
    def signature(self) -> str:
        return make_signature(self.size, self.mtime_ns)

    @property
    def stillness(self) -> tuple[int, int, int]:
        """What must not change while a file settles."""
        return self.size, self.mtime_ns, self.inode


def found_at(path: bytes, status: os.stat_result) -> Found:
    return Found(path, status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def text_of(name: bytes) -> str:
    """A name as globs see it: globs are UTF-8, whatever the locale is."""
    return name.decode("utf-8", "surrogateescape")


class Scanner:
    """The rules of one scan_dir: which files count, which directories are entered, which links are followed."""

    def __init__(self, config: Config, report: Report = lambda reason, path: None) -> None:
        producer = config.producer
        self.root = os.path.abspath(os.fsencode(producer.scan_dir))
        self.choice = FileFilter(producer.include_globs, producer.exclude_globs)
        self.follows = producer.follow_symlinks
        self.report = report
        self._marker = os.fsencode(producer.ready_suffix)
        self._database = DatabaseFiles(config)
        self._real_root = os.path.realpath(self.root)

    def walk(self, top: bytes | None = None, entered: Entered = lambda directory: None) -> Walk:
        """A pass over everything at and below a directory; `entered` is told of each one before it is listed."""
        self._real_root = os.path.realpath(self.root)
        return Walk(self, top or self.root, entered)

    def look(self, path: bytes) -> Found | None:
        """One file named by an event, by the same rules as in a walk; None if it does not count (any more)."""
        directory, name = os.path.split(path)
        if not self.is_entered(directory) or not self.takes(self.prefix_of(directory), directory, name):
            return None
        try:
            status = os.stat(path, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                if not self.may_follow(path):
                    return None
                status = os.stat(path)
        except OSError as error:
            self.pass_over(error, path)
            return None
        return self.regular(path, status)

    def counts(self, path: bytes) -> bool:
        """Whether such a file would be taken, were it there."""
        directory, name = os.path.split(path)
        below = self.prefix_of(directory).split("/")[:-1]
        return self._opens(below) and self.choice.takes(self.prefix_of(directory), text_of(name))

    def is_entered(self, directory: bytes) -> bool:
        """Whether a walk would come here: below scan_dir, through no link that is not followed, not excluded."""
        prefix = self.prefix_of(directory)
        real = os.path.realpath(directory)
        as_named = os.path.join(self._real_root, directory[len(self.root) :].strip(b"/")).rstrip(b"/")
        if real != (as_named or b"/") and not (self.follows and self._is_inside(real)):
            return False
        return self._opens(prefix.split("/")[:-1])

    def _opens(self, names: list[str]) -> bool:
        above = ""
        for name in names:
            if not self.choice.enters(above, name):
                return False
            above += f"{name}/"
        return True

    def takes(self, prefix: str, directory: bytes, name: bytes) -> bool:
        if not self.choice.takes(prefix, text_of(name)):
            self.report(SkipReason.EXCLUDED, os.path.join(directory, name))
            return False
        if self._marker and name.endswith(self._marker):
            return False
        return not name.startswith(self._database.name) or not self._database.owns(directory, name)

    def regular(self, path: bytes, status: os.stat_result) -> Found | None:
        if stat.S_ISREG(status.st_mode):
            return found_at(path, status)
        if not stat.S_ISDIR(status.st_mode):
            self.report(SkipReason.SPECIAL, path)
        return None

    def prefix_of(self, directory: bytes) -> str:
        """The directories between scan_dir and a file, with a slash at the end unless there are none."""
        below = text_of(directory[len(self.root) :].strip(b"/"))
        return f"{below}/" if below else ""

    def is_linked_directory(self, path: bytes) -> bool:
        """Whether a link that is followed leads to a directory: its events look like a file's."""
        return self.follows and os.path.islink(path) and os.path.isdir(path) and self.is_entered(path)

    def is_ready(self, path: bytes) -> bool:
        """Whether its marker exists, where markers are asked for."""
        return not self._marker or os.path.lexists(path + self._marker)

    def marked_by(self, path: bytes) -> bytes | None:
        """The file that this marker speaks of; None if it is no marker."""
        return path.removesuffix(self._marker) if self._marker and path.endswith(self._marker) else None

    def may_follow(self, path: bytes) -> bool:
        """Links are followed only on request, and never out of scan_dir."""
        if not self.follows:
            self.report(SkipReason.SYMLINK, path)
        elif not self._is_inside(os.path.realpath(path)):
            self.report(SkipReason.OUTSIDE, path)
        else:
            return True
        return False

    def _is_inside(self, real: bytes) -> bool:
        return real == self._real_root or real.startswith(self._real_root.rstrip(b"/") + b"/")

    def pass_over(self, error: OSError, path: bytes) -> bool:
        """Tells of an entry that can't be looked at; True if something may be missed by it."""
        if isinstance(error, FileNotFoundError | NotADirectoryError) and path != self.root:
            self.report(SkipReason.VANISHED, path)
            return False
        if error.errno == errno.ELOOP:
            self.report(SkipReason.LOOP, path)
            return False
        self.report(SkipReason.UNREADABLE, path)
        return True


class Walk:
    """One pass over a tree. Holds the directories still to enter, and the one it is in."""

    def __init__(self, scanner: Scanner, top: bytes, entered: Entered) -> None:
        self.top = top
        self.is_whole = top == scanner.root
        self.started_s = 0.0
        self.is_done = False
        self.is_complete = True  # so far everything could be read
        self.fault = ""  # why the top itself could not
        self._scanner = scanner
        self._entered = entered
        # Where links are followed, a loop is told by the directories that led here, those above the top included.
        self._stack: list[tuple[bytes, _Chain]] = [(top, self._chain_above(top) if scanner.follows else None)]
        self._here: tuple[bytes, str, _Chain] = (top, "", None)
        self._entries: _Entries | None = None

    def step(self) -> list[Found]:
        """Looks at some more entries and returns the files among them that count, often none."""
        found: list[Found] = []
        left = STEP
        while left > 0 and not self.is_done:
            if self._entries is None:
                left -= 1
                self._open_next()
            else:
                left -= self._list(self._entries, left, found)
        return found

    def close(self) -> None:
        self.is_done = True
        self._leave()

    def _open_next(self) -> None:
        if not self._stack:
            self.is_done = True
            return
        directory, above = self._stack.pop()
        try:
            chain = self._chain(directory, above) if self._scanner.follows else None
            if self._scanner.follows and chain is None:
                self._scanner.report(SkipReason.LOOP, directory)
                return
            self._entered(directory)
            self._entries = os.scandir(directory)
        except OSError as error:
            self._pass_over(error, directory)
            if directory == self.top:
                self.fault = error.strerror or str(error)
        else:
            self._here = directory, self._scanner.prefix_of(directory), chain

    def _list(self, entries: _Entries, most: int, found: list[Found]) -> int:
        """The hot loop of every scan: for a plain file no call is made that is not needed."""
        directory, prefix, _ = self._here
        takes, regular = self._scanner.takes, self._scanner.regular
        seen = 0
        try:
            for entry in islice(entries, most):
                seen += 1
                try:
                    if not entry.is_file(follow_symlinks=False):
                        self._special(entry, found)
                    elif takes(prefix, directory, entry.name):
                        file = regular(entry.path, entry.stat(follow_symlinks=False))
                        if file is not None:
                            found.append(file)
                except OSError as error:
                    self._pass_over(error, entry.path)
        except OSError as error:  # of the listing itself
            self._pass_over(error, directory)
        if seen < most:
            self._leave()
        return max(seen, 1)

    def _special(self, entry: os.DirEntry[bytes], found: list[Found]) -> None:
        """Whatever is not plainly a file: directories, links, pipes."""
        directory, prefix, chain = self._here
        scanner = self._scanner
        if entry.is_symlink() and not scanner.may_follow(entry.path):
            return
        status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            if scanner.choice.enters(prefix, text_of(entry.name)):
                self._stack.append((entry.path, chain))
        elif scanner.takes(prefix, directory, entry.name):
            file = scanner.regular(entry.path, status)
            if file is not None:
                found.append(file)

    def _leave(self) -> None:
        if self._entries is not None:
            self._entries.close()
            self._entries = None

    def _chain_above(self, directory: bytes) -> _Chain:
        chain: _Chain = None
        while directory != self._scanner.root:
            directory = os.path.dirname(directory)
            try:
                status = os.stat(directory)
            except OSError:
                break  # vanished: so has what lies below
            chain = (status.st_dev, status.st_ino), chain
        return chain

    def _chain(self, directory: bytes, above: _Chain) -> _Chain:
        """The directories that lead here; None when this one is among them already."""
        status = os.stat(directory)
        here, link = (status.st_dev, status.st_ino), above
        while link is not None:
            if link[0] == here:
                return None
            link = link[1]
        return here, above

    def _pass_over(self, error: OSError, path: bytes) -> None:
        if self._scanner.pass_over(error, path):
            self.is_complete = False


class _Entries(Protocol):
    """What os.scandir gives."""

    def __iter__(self) -> Iterator[os.DirEntry[bytes]]: ...
    def close(self) -> None: ...


class DatabaseFiles:
    """The files of the embedded broker, where that is the one in use: never a job."""

    def __init__(self, config: Config) -> None:
        self._folder, self.name = os.path.split(os.path.realpath(os.fsencode(config.sqlite.path)))
        self._names = re.compile(re.escape(self.name) + _BESIDE)
        if config.broker_kind != "sqlite":
            self.name = b"\0"  # no file is called so

    def owns(self, directory: bytes, name: bytes) -> bool:
        return self._names.fullmatch(name) is not None and os.path.realpath(directory) == self._folder
