"""One file is deleted or moved after its job has ended.

Other programs may replace the file at any moment, so it is renamed first, to a private name in its own directory that
no producer takes. Under that name it is compared with the version that was processed, and then deleted or moved.
Another version gets its own name back. No other file is ever replaced. A program that has the file open can still write
to it until the end; only what it wrote before the comparison is noticed.

What a kill -9 leaves: the file under its own name, under its private name or under its new one. The process that
performs the action again continues from the private name, which is made of the id of the job.
"""

from __future__ import annotations

import hashlib
import os

from msgspec import Struct

from fileq.config import MOVE
from fileq.core.signature import split_signature
from fileq.files.exclusive_move import move_into, private_name, take, targets
from fileq.files.version import changed_version, signature_of


class KeepFile(Exception):
    """Why the file is neither deleted nor moved."""


class NotPutBack(Exception):
    """The file is kept, but could not get its own name back. The action must be performed again."""


class FileAction(Struct, frozen=True):
    """`rule` is `delete` or `move:DIR`. `processed` is the signature of the version that was processed. None if it is
    unknown: then any version counts as processed."""

    id: str
    rule: str
    path: bytes
    roots: tuple[bytes, ...]
    processed: str | None

    def perform(self) -> bytes:
        """Returns the new path; b"" if the file was not moved. Raises KeepFile or OSError if the file stays."""
        # Every program that can push a job can name any path, and a job refused for its path is a dead job too.
        directory = os.path.realpath(os.path.dirname(self.path))
        if not any(_is_in(directory, os.path.realpath(root)) for root in self.roots):
            raise KeepFile("it is outside the allowed roots")
        folder = None
        if self.rule != "delete":
            folder = self._target(directory)
            if folder is None:
                return b""
        private = os.path.join(directory, private_name(hashlib.sha256(self.id.encode()).hexdigest()[:32]))
        self._take(private)
        try:
            self._check_version(private)
            if folder is not None:
                os.makedirs(folder, exist_ok=True)
                return move_into(private, folder, os.path.basename(self.path))
            os.unlink(private)
        except (KeepFile, OSError):
            self._put_back(private)
            raise
        return b""

    def find_moved(self) -> bytes:
        """Where a process that was killed has moved the file; b"" if that is unknown."""
        directory = os.path.realpath(os.path.dirname(self.path))
        if self.rule == "delete" or self.processed is None or (folder := self._target(directory)) is None:
            return b""
        short = split_signature(self.processed).short  # a move to another file system changes the inode
        for target in targets(folder, os.path.basename(self.path)):
            try:
                if signature_of(os.stat(target)) == short:
                    return target
            except OSError:
                break
        return b""

    def _take(self, private: bytes) -> None:
        """The file is under its private name afterwards. A version that was not processed is not touched."""
        try:
            self._check_version(private)
        except FileNotFoundError:
            pass
        except KeepFile:
            self._put_back(private)
            raise
        else:
            return
        self._check_version(self.path)
        try:
            take(self.path, private)
        except FileExistsError:
            return  # another process performs the same action

    def _check_version(self, path: bytes) -> None:
        status = os.stat(path)
        if self.processed is not None and changed_version(path, status, self.processed) is not None:
            raise KeepFile("it is another version now")

    def _put_back(self, private: bytes) -> None:
        """Gives the file its own name back, or a numbered one if there is a newer file of that name."""
        try:
            move_into(private, os.path.dirname(self.path), os.path.basename(self.path))
        except FileNotFoundError:
            pass  # another process performs the same action, and has done it
        except OSError as error:
            raise NotPutBack(f"it is now {os.fsdecode(private)}, because of {error}") from error

    def _target(self, directory: bytes) -> bytes | None:
        """The directory that the file is moved to: DIR, and below it the path that the file has below its root.

        None if the file is below DIR already. The path below another `move:DIR` counts as the path below the root. All
        links are resolved, so the path has no `..` in it and never leads out of DIR."""
        folder = os.path.abspath(os.fsencode(self.rule.removeprefix(MOVE)))
        bases = {os.path.realpath(base) for base in self.roots}
        base = max((base for base in bases if _is_in(directory, base)), key=len)
        if base == os.path.realpath(folder):
            return None
        return os.path.join(folder, directory[len(base) :].lstrip(b"/"))


def _is_in(directory: bytes, base: bytes) -> bool:
    """Whether the directory is the base or below it. Both are absolute, without links."""
    return directory == base or directory.startswith(base.rstrip(b"/") + b"/")
