"""One file is deleted or moved after its job has ended.

Other programs may replace the file at any moment, so it is renamed first, to a private name in its own directory that
no producer takes. Under that name it is compared with the version that was processed, and then deleted or moved.
Another version gets its own name back. No other file is ever replaced. A program that has the file open can still write
to it until the end; only what it wrote before the comparison is noticed.

Others may write to these directories too. Both are opened once, without following links below the trusted roots, and
every step names the file in the open directory: a link that takes the place of a directory leads nowhere. Only regular
files are deleted or moved. A link that takes the place of the file at the very last moment is moved back; a kill -9 in
between leaves it where it was moved to.

What a kill -9 leaves: the file under its own name, under its private name or under its new one. The process that
performs the action again continues from the private name, which is made of the id of the job.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress

from msgspec import Struct

from fileq.config import MOVE
from fileq.core.job import split_signature
from fileq.files.beneath import make_directories, open_directory_in, open_without_links
from fileq.files.exclusive_move import Place, lasting_names, move_into, private_name, take
from fileq.files.version import changed_version, signature_of


class KeepFile(Exception):
    """Why the file is neither deleted nor moved."""


class NotPutBack(Exception):
    """The file is kept, but could not get its own name back. The action must be performed again."""


class FileAction(Struct, frozen=True):
    """`rule` is `delete` or `move:DIR`. `roots` are trusted directories, `folders` all that files are moved to.
    `processed` is the signature of the version that was processed. None if it is unknown: then any version counts as
    processed."""

    id: str
    rule: str
    path: bytes
    roots: tuple[bytes, ...]
    folders: tuple[bytes, ...]
    processed: str | None

    def perform(self) -> bytes:
        """Returns the new path; b"" if the file was not moved. Raises KeepFile or OSError if the file stays."""
        # Every program that can push a job can name any path, and a job refused for its path is a dead job too.
        directory = os.path.realpath(os.path.dirname(self.path))
        bases = [os.path.realpath(root) for root in self.roots]
        if not any(_is_in(directory, base) for base in bases):
            raise KeepFile("it is outside the allowed roots")
        folder = None
        if self.rule != "delete":
            folder = self._target(directory)
            if folder is None:
                return b""
        # A link that takes the place of a directory from now on is an error.
        source = open_without_links(directory, bases)
        try:
            return self._act(source, folder)
        finally:
            os.close(source)

    def _act(self, source: int, folder: bytes | None) -> bytes:
        name = os.path.basename(self.path)
        private = private_name(self._key)
        self._take(source, private)
        try:
            self._check_version(source, private)
            if folder is not None:
                opened = self._open_folder(folder, is_made=True)
                try:
                    moved = move_into(Place(source, private), opened, name, self._key[:16])
                    try:
                        _check_regular(os.stat(moved, dir_fd=opened, follow_symlinks=False))
                    except KeepFile:
                        move_into(Place(opened, moved), source, name)
                        raise
                    return os.path.join(folder, moved)
                finally:
                    os.close(opened)
            os.unlink(private, dir_fd=source)
        except (KeepFile, OSError):
            self._put_back(source, private)
            raise
        return b""

    @property
    def _key(self) -> str:
        """The same in each process that performs the action."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:32]

    def find_moved(self) -> bytes:
        """Where a process that was killed has moved the file; b"" if that is unknown."""
        directory = os.path.realpath(os.path.dirname(self.path))
        if self.rule == "delete" or self.processed is None or (folder := self._target(directory)) is None:
            return b""
        short = split_signature(self.processed).short  # a move to another file system changes the inode
        try:
            opened = self._open_folder(folder, is_made=False)
        except OSError:
            return b""
        try:
            for name in lasting_names(os.path.basename(self.path), self._key[:16]):
                with suppress(OSError):
                    if signature_of(os.stat(name, dir_fd=opened, follow_symlinks=False)) == short:
                        return os.path.join(folder, name)
        finally:
            os.close(opened)
        return b""

    def _take(self, source: int, private: bytes) -> None:
        """The file is under its private name afterwards. A version that was not processed is not touched."""
        try:
            self._check_version(source, private)
        except FileNotFoundError:
            pass
        except KeepFile:
            self._put_back(source, private)
            raise
        else:
            return
        name = os.path.basename(self.path)
        self._check_version(source, name)
        try:
            take(source, name, private)
        except FileExistsError:
            return  # another process performs the same action

    def _check_version(self, source: int, name: bytes) -> None:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        _check_regular(status)
        if self.processed is not None and changed_version(self.path, status, self.processed) is not None:
            raise KeepFile("it is another version now")

    def _put_back(self, source: int, private: bytes) -> None:
        """Gives the file its own name back, or a numbered one if there is a newer file of that name."""
        try:
            move_into(Place(source, private), source, os.path.basename(self.path))
        except FileNotFoundError:
            pass  # another process performs the same action, and has done it
        except OSError as error:
            raise NotPutBack(f"it is now {os.fsdecode(private)}, because of {error}") from error

    def _target(self, directory: bytes) -> bytes | None:
        """The directory that the file is moved to: DIR, and below it the path that the file has below its root.

        None if the file is below DIR already. The path below another `move:DIR` counts as the path below the root. All
        links are resolved, so the path has no `..` in it and never leads out of DIR."""
        folder = self._folder
        bases = {os.path.realpath(base) for base in (*self.roots, *self.folders)}
        base = max((base for base in bases if _is_in(directory, base)), key=len, default=None)
        if base is None or base == os.path.realpath(folder):
            return None
        return os.path.join(folder, directory[len(base) :].lstrip(b"/")).rstrip(b"/")

    def _open_folder(self, target: bytes, *, is_made: bool) -> int:
        """A descriptor of the directory that the file is moved to. Trusted is the root that DIR is in, and otherwise
        DIR itself. No link below that is followed: others may write to it."""
        top = self._root_of_folder()
        if top is None:
            top = self._folder
            if is_made:
                os.makedirs(top, exist_ok=True)
        opened = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return (make_directories if is_made else open_directory_in)(opened, target[len(top.rstrip(b"/")) + 1 :])
        finally:
            os.close(opened)

    def _root_of_folder(self) -> bytes | None:
        """The part of DIR's path that is a root, by whatever links above it; None if DIR is in no root."""
        roots = {os.path.realpath(root) for root in self.roots} - {os.path.realpath(b"/")}
        names = self._folder.split(b"/")
        for count in range(2, len(names) + 1):
            above = b"/".join(names[:count])
            if above != self._folder and os.path.realpath(above) in roots:
                return above
        return None

    @property
    def _folder(self) -> bytes:
        return os.path.abspath(os.fsencode(self.rule.removeprefix(MOVE)))


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        raise KeepFile(f"it is {kind} now, and only regular files are deleted or moved")


def _is_in(directory: bytes, base: bytes) -> bool:
    """Whether the directory is the base or below it. Both are absolute, without links."""
    return directory == base or directory.startswith(base.rstrip(b"/") + b"/")
