"""Walks a directory tree in bounded steps, by the rules of one scan_dir: which files count, which directories are
entered, which symbolic links are followed. Never opens a file, never remembers the tree.

One directory at a time, one `stat` per file, a bounded number of entries per step and of directories that wait to be
entered. An entry that cannot be read is counted and passed over. A walk that may have missed files because of it is not
complete.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from msgspec import Struct

from fileq.config import Config
from fileq.config.schema import FAILED_MARKER, DeliverySettings
from fileq.config.trusted_place import name_of_user
from fileq.core.events import Emit, FileSkipped, SkippedFilesCounted, SkipReason, ignore
from fileq.core.text import quoted_path
from fileq.files.exclusive_move import PREFIX, is_private
from fileq.files.globs import FileFilter, Globs
from fileq.files.paths import MAX_DEPTH, is_in
from fileq.files.status import FoundFile, found_at

STEP_ENTRIES = 1_000
STACK_MAX = 10_000  # directories that wait to be entered


class DirectoryWatch(Protocol):
    """Receives each directory before it is listed, so that no file falls between the listing and the watch."""

    def watch(self, directory: bytes) -> None: ...


class DirectoryWalk:
    """One pass over the tree below `top`. Holds the directories still to enter and the open listing of one.

    A listing that names more directories than the stack has room for is suspended until those have been walked. Only
    directories above the one being listed are suspended, so there are at most MAX_DEPTH of them."""

    def __init__(self, rules: ScanRules, top: bytes, watch: DirectoryWatch, now_s: float = 0.0) -> None:
        rules.refresh()
        self.top = top
        self.started_s = now_s
        self.is_whole = top == rules.root
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
        self._listing: os._ScandirIterator[bytes] | None = None
        self._suspended: list[tuple[bytes, str, os._ScandirIterator[bytes]]] = []

    def step(self) -> list[FoundFile]:
        """Reads the next entries and returns the files among them that count, often none."""
        found: list[FoundFile] = []
        left = STEP_ENTRIES
        before = self._rules.counts.skipped.copy()
        while left > 0 and not self.is_done:
            if self._listing is not None:
                left -= self._read(self._listing, left, found)
                continue
            left -= 1
            if self._suspended and len(self._stack) < STACK_MAX:
                self._directory, self._prefix, self._listing = self._suspended.pop()
                continue
            if not self._stack:
                self.is_done = True
                break
            directory = self._stack.pop()
            try:
                self._watch.watch(directory)
                self._listing = os.scandir(directory)
            except OSError as error:
                self._skip_error(error, directory, is_directory=True)
                if directory == self.top:
                    self.error = error.strerror or str(error)
            else:
                self._directory, self._prefix = directory, self._rules.prefix_of(directory)
        self.found_count += len(found)
        self.skipped += self._rules.counts.skipped - before
        return found

    def close(self) -> None:
        self.is_done = True
        self._close_listing()
        while self._suspended:
            self._suspended.pop()[-1].close()

    def _read(self, listing: os._ScandirIterator[bytes], most: int, found: list[FoundFile]) -> int:
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
                        if len(self._stack) >= STACK_MAX:
                            self._suspended.append((directory, prefix, listing))
                            self._listing = None
                            return seen
                    elif takes(prefix, directory, entry.name):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found.append(found_at(entry.path, status))
                        else:  # another kind of entry has taken its place since it was listed
                            self._rules.regular_file(entry.path, status)
                except OSError as error:
                    self._skip_error(error, entry.path)
        except OSError as error:  # the listing itself failed
            self._skip_error(error, directory, is_directory=True)
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

    def _skip_error(self, error: OSError, path: bytes, *, is_directory: bool = False) -> None:
        if self._rules.skip_error(error, path, is_directory=is_directory):
            self.is_complete = False


def text_of(name: bytes) -> str:
    """A name as globs see it. Globs are UTF-8, independent of the locale."""
    return name.decode("utf-8", "surrogateescape")


class ScanRules:
    """The rules of one scan_dir. `root` is its absolute path.

    Scans and events apply the same rules, so both find the same files. Every file that is passed over is counted with
    its reason. The rules read names and `stat`, never contents."""

    def __init__(self, config: Config, counts: ProducerCounts | None = None) -> None:
        producer = config.producer
        self.root = os.path.abspath(os.fsencode(producer.scan_dir))
        self.filter = FileFilter(producer.include_globs, producer.exclude_globs)
        self.follows_links = producer.follow_symlinks
        self.counts = counts or ProducerCounts()
        self._skip = self.counts.skip
        self._marker = os.fsencode(producer.ready_suffix)
        self._database = DatabaseFiles(config)
        self._special_starts = PREFIX, self._database.name
        self._moved = MoveFolders(config, self.root)
        self.deliveries = DeliveryPlaces(producer.deliveries, self.root)
        self._has_deliveries = bool(self.deliveries)
        self._real_root = os.path.realpath(self.root)

    def refresh(self) -> None:
        """scan_dir may be a link that leads elsewhere now. Called when a walk starts."""
        self._real_root = os.path.realpath(self.root)
        self._moved.refresh()

    # one file or directory by its path

    def find(self, path: bytes) -> FoundFile | None:
        """The file at this path as it is now, or None if it does not count or no longer exists."""
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
            self.skip_error(error, path)
            return None
        return self.regular_file(path, status)

    def why_left_out(self, path: bytes) -> str:
        """The rule by which `find` returns None for this path; "" if it returns the file. For one file that a person
        asks about."""
        directory, name = os.path.split(path)
        if path == self.root:
            return "it is a directory"
        if reason := self._why_not_entered(directory) or self.why_unreadable(path):
            return reason
        before = self.counts.skipped.copy()
        if self.find(path) is not None:
            return ""
        skipped = self.counts.skipped - before
        if os.path.isdir(path) and not os.path.islink(path):
            return "it is a directory"
        prefix = self.prefix_of(directory)
        if reason := self.filter.why_left_out(prefix, text_of(name)):
            return reason
        if not self.takes(prefix, directory, name):
            if self._has_deliveries and self.deliveries.is_control_file(directory, name):
                return "it is a marker or manifest of a delivery (producer.deliveries)"
            if self._marker and name.endswith(self._marker):
                return "it is the marker of another file (producer.ready_suffix)"
            return "it is a temporary file of fileq" if is_private(name) else "it belongs to fileq's own database"
        if SkipReason.SYMLINK in skipped:
            return "it is a symbolic link (producer.follow_symlinks is off)"
        if SkipReason.OUTSIDE in skipped:
            return "it is a symbolic link that leads out of producer.scan_dir"
        try:
            os.stat(path)
        except OSError as error:
            return f"it can't be read: {error.strerror}"
        return "it is not a regular file" if SkipReason.SPECIAL in skipped else "it is a directory"

    def why_unreadable(self, path: bytes) -> str:
        """The first directory, from scan_dir to this path, that the user of this process can't list or enter; "" if it
        can, or if the path is not below scan_dir."""
        if not is_in(path, self.root):
            return ""
        names = self._name_of(path).split(b"/")
        for depth in range(len(names) + 1):
            directory = os.path.join(self.root, *names[:depth])
            if not os.path.isdir(directory):
                break
            modes = (("r", os.R_OK), ("x", os.X_OK))
            if lacking := [word for word, mode in modes if not os.access(directory, mode, effective_ids=True)]:
                lacks = f"lacks the permission{'s' if len(lacking) > 1 else ''} {' and '.join(lacking)}"
                user = name_of_user(os.geteuid())
                return f"{quoted_path(directory)} can't be read: {user} {lacks} on this directory"
        return ""

    def covers(self, path: bytes) -> bool:
        """Whether a file with this path would count, by its name alone."""
        directory, name = os.path.split(path)
        below = self._name_of(directory)
        if below.count(b"/") >= MAX_DEPTH or self._moved.contains_name(below) or is_private(name):
            return False
        prefix = self.prefix_of(directory)
        return self._enters_all(prefix.split("/")[:-1]) and self.filter.takes(prefix, text_of(name))

    def is_entered(self, directory: bytes) -> bool:
        return not self._why_not_entered(directory)

    def _why_not_entered(self, directory: bytes) -> str:
        """Why no scan comes here; "" if one does: below scan_dir, not excluded, not too deep, not through links which
        are not followed."""
        if not is_in(directory, self.root):
            return f"it is not below producer.scan_dir ({os.fsdecode(self.root)!r})"
        below = self._name_of(directory)
        if below.count(b"/") >= MAX_DEPTH:
            return f"its directory is more than {MAX_DEPTH} levels below producer.scan_dir"
        real = os.path.realpath(directory)
        if self._moved.contains_name(below) or self._moved.contains_real(real):
            return "worker.after moves files to its directory"
        if not self._is_reached(below, real):
            links = "more than one link or out of it"
            links = links if self.follows_links else "a link (producer.follow_symlinks is off)"
            return f"its directory is reached from producer.scan_dir only by {links}"
        is_entered = self._enters_all(self.prefix_of(directory).split("/")[:-1])
        return "" if is_entered else "producer.exclude_globs excludes its directory"

    def is_linked_directory(self, path: bytes) -> bool:
        """Whether this is a link to a directory that scans enter. Events cannot tell it from a file."""
        return self.follows_links and os.path.islink(path) and os.path.isdir(path) and self.is_entered(path)

    def _enters_all(self, names: list[str]) -> bool:
        above = ""
        for name in names:
            if not self.filter.enters(above, name):
                return False
            above += f"{name}/"
        return True

    def marked_file(self, path: bytes) -> bytes | None:
        """The file that this marker belongs to, or None if the path is no marker."""
        return path.removesuffix(self._marker) if self._marker and path.endswith(self._marker) else None

    # the steps of a walk

    def prefix_of(self, directory: bytes) -> str:
        """The part of the path below scan_dir, with a slash at its end; "" for scan_dir itself."""
        below = text_of(self._name_of(directory))
        return f"{below}/" if below else ""

    def enters(self, prefix: str, path: bytes, name: bytes) -> bool:
        """Whether a walk enters this directory, which is in one that it entered."""
        if self._name_of(path).count(b"/") >= MAX_DEPTH:
            self._skip(SkipReason.DEEP, path)
            return False
        if not self.filter.enters(prefix, text_of(name)) or self._moved.contains_name(self._name_of(path)):
            return False
        if not self.follows_links:
            return True  # without links, a directory has only the one name
        real = os.path.realpath(path)
        if self._moved.contains_real(real):
            return False
        if not self._is_reached(self._name_of(path), real):
            self._skip(SkipReason.LOOP, path)
            return False
        return True

    def _name_of(self, directory: bytes) -> bytes:
        return directory[len(self.root) :].strip(b"/")

    def takes(self, prefix: str, directory: bytes, name: bytes) -> bool:
        """Whether a file counts by its name."""
        if not self.filter.takes(prefix, name.decode("utf-8", "surrogateescape")):  # text_of() without the call
            if not self._is_never_taken(directory, name):
                self._skip(SkipReason.EXCLUDED, os.path.join(directory, name))
            return False
        if not self._has_deliveries and not self._marker and not name.startswith(self._special_starts):
            return True  # nearly every file, so the rest costs nothing
        return not self._is_never_taken(directory, name)

    def _is_never_taken(self, directory: bytes, name: bytes) -> bool:
        """Whether this is a file of fileq itself, a marker or a manifest. No glob takes it, and it is not counted as
        skipped."""
        if self._has_deliveries and self.deliveries.is_control_file(directory, name):
            return True
        if (self._marker and name.endswith(self._marker)) or is_private(name):
            return True
        return name.startswith(self._database.name) and self._database.owns(directory, name)

    def regular_file(self, path: bytes, status: os.stat_result) -> FoundFile | None:
        if stat.S_ISREG(status.st_mode):
            return found_at(path, status)
        if not stat.S_ISDIR(status.st_mode):
            self._skip(SkipReason.SPECIAL, path)
        return None

    def may_follow(self, path: bytes) -> bool:
        """Links are followed only if `producer.follow_symlinks` is set, and never out of scan_dir."""
        if not self.follows_links:
            self._skip(SkipReason.SYMLINK, path)
        elif not is_in(os.path.realpath(path), self._real_root):
            self._skip(SkipReason.OUTSIDE, path)
        else:
            return True
        return False

    def skip_error(self, error: OSError, path: bytes, *, is_directory: bool = False) -> bool:
        """Counts an entry that cannot be read. True if the scan may miss files because of it."""
        if isinstance(error, FileNotFoundError | NotADirectoryError) and path != self.root:
            self._skip(SkipReason.VANISHED, path)
            return False
        if error.errno == errno.ELOOP:
            self._skip(SkipReason.LOOP, path)
            return False
        self._skip(SkipReason.UNREADABLE, path, is_directory=is_directory)
        return True

    def _is_reached(self, name: bytes, real: bytes) -> bool:
        """Whether scans come to a directory by this name below scan_dir: without links, or, where they are followed, by
        one link that leads neither out of scan_dir nor to a directory above it. With more links in a path, a few of
        them would give a directory more names than can be walked. It depends on the path alone, so walks of a part,
        events and deliveries find the same files."""
        if real == (os.path.join(self._real_root, name).rstrip(b"/") or b"/"):
            return True
        if not self.follows_links or not is_in(real, self._real_root):
            return False
        above, names = self._real_root, name.split(b"/")
        while names:
            path = os.path.join(above, names.pop(0))
            if os.path.islink(path):
                target = os.path.realpath(path)
                return real == os.path.join(target, *names) and not is_in(above, target)
            above = path
        return False  # it has changed meanwhile


class MoveFolders:
    """The directories of `worker.after` (`move:DIR`) below scan_dir. Their files are done: they are never found again.
    `root` is the absolute path of scan_dir.

    Knows them by their names below scan_dir, both as configured and with symbolic links resolved. A DIR that is written
    as workers see it is mapped back to the producer's path by `worker.path_map`."""

    def __init__(self, config: Config, root: bytes) -> None:
        self._root = root
        folders = [os.path.abspath(os.fsencode(folder)) for folder in config.worker.after.folders]
        self._folders = {path for folder in folders for path in (folder, config.paths.there(folder))}
        self._names: frozenset[bytes] = frozenset()
        self._real: tuple[bytes, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Resolves links again. They may lead elsewhere now, and a DIR that did not exist may exist."""
        if not self._folders:
            return
        real_root = os.path.realpath(self._root)
        real = {os.path.realpath(folder) for folder in self._folders}
        names = {_below(self._root, folder) for folder in self._folders} | {_below(real_root, path) for path in real}
        self._names = frozenset(names - {b""})
        self._real = tuple(path for path in real if _below(real_root, path))

    def contains_name(self, name: bytes) -> bool:
        """Whether this path below scan_dir is such a directory, or is below one. Reads no file."""
        if not self._names:
            return False
        while name:
            if name in self._names:
                return True
            name = os.path.dirname(name)
        return False

    def contains_real(self, real: bytes) -> bool:
        """The same for an absolute path without links."""
        return any(is_in(real, folder) for folder in self._real)


def _below(root: bytes, path: bytes) -> bytes:
    """The path below the root, or b"" if it is not below it."""
    above = root.rstrip(b"/") + b"/"
    return path[len(above) :] if path.startswith(above) else b""


# deliveries

_REMEMBERED_MAX = 10_000


class DeliveryPlace(Struct, frozen=True):
    """The directory of a delivery, absolute, and its settings."""

    directory: bytes
    settings: DeliverySettings

    def is_control_file(self, name: bytes) -> bool:
        """Whether a file of this name, at the delivery's own level, is never a job."""
        complete = self.settings.complete
        if complete.marker is not None and name == os.fsencode(complete.marker):
            return True
        if complete.manifest is not None and is_manifest(complete.manifest, name):
            return True
        return bool(self.settings.done_marker) and text_of(name) in (self.settings.done_marker, FAILED_MARKER)


def is_manifest(pattern: str, name: bytes) -> bool:
    return Globs([pattern]).match("", text_of(name))


class DeliveryPlaces:
    """Which directory is a delivery, and which of its files are about the delivery instead of being part of it. Reads
    names only. `root` is the absolute path of scan_dir.

    The first entry of the configuration that matches a directory wins. A directory inside a delivery belongs to that
    delivery, also if its own path would match."""

    def __init__(self, settings: Sequence[DeliverySettings], root: bytes) -> None:
        self._root = root.rstrip(b"/")
        self._kinds = [(Globs([one.match.rstrip("/")]), one) for one in settings]
        self._remembered: dict[bytes, DeliveryPlace | None] = {}
        self._announced: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def of(self, directory: bytes) -> DeliveryPlace | None:
        """The delivery that the files of this directory are part of."""
        if not self._kinds:
            return None
        if directory not in self._remembered:
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[directory] = self._find(directory)
        return self._remembered[directory]

    def is_control_file(self, directory: bytes, name: bytes) -> bool:
        """Whether this file is never a job. Remembers that the directory has a file about its delivery."""
        place = self.of(directory)
        if place is None or place.directory != directory or not place.is_control_file(name):
            return False
        self._announced.add(directory)
        return True

    def take_announced(self) -> set[bytes]:
        """The directories in which files about their delivery were found since the last call."""
        announced, self._announced = self._announced, set()
        return announced

    def _find(self, directory: bytes) -> DeliveryPlace | None:
        """The outermost directory that matches."""
        names = directory[len(self._root) :].strip(b"/").split(b"/")[:MAX_DEPTH]
        for depth, name in enumerate(names):
            if not name:
                return None
            prefix = "".join(f"{text_of(above)}/" for above in names[:depth])
            for globs, settings in self._kinds:
                if globs.match(prefix, text_of(name)):
                    return DeliveryPlace(b"/".join((self._root, *names[: depth + 1])), settings)
        return None


# The side files that brokers/sqlite keeps next to its database.
_SIDE_FILES = (b"", b"-wal", b"-shm", b"-journal", b"-lock", b"-listen", b"-leases")


class DatabaseFiles:
    """The database of the SQLite broker and its side files, which may lie inside scan_dir and never become jobs. With
    another broker there are none."""

    def __init__(self, config: Config) -> None:
        self._directory, name = os.path.split(os.path.realpath(os.fsencode(config.sqlite.path)))
        self.name = name if config.broker_kind == "sqlite" else b"\0"  # no file name contains it
        self._names = frozenset(self.name + end for end in _SIDE_FILES)

    def owns(self, directory: bytes, name: bytes) -> bool:
        return name in self._names and os.path.realpath(directory) == self._directory


LOGGED_MAX = 1_000  # skipped files that get a log line
_LOGGED = (SkipReason.UNREADABLE, SkipReason.LOOP, SkipReason.OUTSIDE, SkipReason.DEEP, SkipReason.OLD_MARKER)


class ProducerCounts:
    """What one producer has done since its start. A skipped file that an operator should look at is logged, once."""

    def __init__(self, emit: Emit = ignore) -> None:
        self.found = 0
        self.known = 0
        self.enqueued = 0
        self.skipped: Counter[SkipReason] = Counter()
        self._emit = emit
        self._reported: Counter[SkipReason] = Counter()
        self._logged: set[tuple[SkipReason, bytes]] = set()

    def skip(self, reason: SkipReason, path: bytes, *, is_directory: bool = False) -> None:
        self.skipped[reason] += 1
        if reason in _LOGGED and (reason, path) not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add((reason, path))
            action = "this is a directory; each scan tries to read it again" if is_directory else None
            self._emit(FileSkipped(reason, os.fsdecode(path), action))

    def report(self) -> None:
        """Emits the skips since the last report. One event per turn, not per file, because a scan can skip millions."""
        if news := self.skipped - self._reported:
            self._reported = self.skipped.copy()
            self._emit(SkippedFilesCounted(dict(news)))
