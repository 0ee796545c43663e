"""Where a job's file is for this worker: maps the producer's paths, and holds the directories they must be under. And
why one of these directories can't be used.

Paths only computes on names and reads no file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]  # as open() takes it

# Directories below a root, one in the other, that are entered. A sender can nest thousands, and each costs more than
# the one above it: its path is longer.
MAX_DEPTH = 100


class Paths:
    """The `path_map` and `allowed_roots` of one worker. Without roots, the mapped `scan_dir` is the only one.

    `folders` are those that files are moved to after their job. A job that is retried runs there, so files in them are
    allowed too. A folder above a root allows nothing more. A folder below a root is no root of its own: those who may
    write there could put a link in its place, and no root may be chosen by them."""

    def __init__(
        self, scan_dir: str, path_map: Mapping[str, str], allowed_roots: Sequence[str], folders: Sequence[str] = ()
    ) -> None:
        pairs = ((os.fsencode(theirs), os.fsencode(ours)) for theirs, ours in path_map.items())
        cleaned = ((theirs.rstrip(b"/"), ours.rstrip(b"/")) for theirs, ours in pairs)
        self._map = sorted(cleaned, key=lambda pair: len(pair[0]), reverse=True)
        given = tuple(os.path.abspath(os.fsencode(root)) for root in allowed_roots)
        self.roots = given or (self.here(os.path.abspath(os.fsencode(scan_dir))),)
        absolute = (os.path.abspath(os.fsencode(folder)) for folder in folders)
        self.folders = tuple(folder for folder in absolute if not any(is_in(root, folder) for root in self.roots))
        apart = (folder for folder in self.folders if not any(is_in(folder, root) for root in self.roots))
        self.allowed = (*self.roots, *apart)

    def here(self, path: bytes) -> bytes:
        """This worker's path for a producer's path: replaces the longest matching prefix."""
        for theirs, ours in self._map:
            if path == theirs or path.startswith(theirs + b"/"):
                return ours + path[len(theirs) :] or b"/"
        return path

    def there(self, path: bytes) -> bytes:
        """The producer's path for this worker's path. A path that is already the producer's stays as it is."""
        if self.here(path) == path:
            for theirs, ours in self._map:
                if path == ours or path.startswith(ours + b"/"):
                    return theirs + path[len(ours) :] or b"/"
        return path

    @property
    def allowed_there(self) -> tuple[str, ...]:
        """The roots and folders as the producer sees their paths, fit for JSON. For below_root() of other workers."""
        return tuple(_as_text(self.there(directory)) for directory in self.allowed)

    def allows(self, path: bytes) -> bool:
        """Whether the directory, given by its path on this worker, is a root or folder or below one, by its name."""
        return any(is_in(path, directory) for directory in self.allowed)

    def relative(self, path: bytes) -> str:
        """The path below its root, which globs match; the whole path if it is below no root. A moved file has the same
        path below its folder as it had below its root."""
        above = next((root for root in self.roots if is_in(path, root)), b"")
        folders = [folder for folder in self.folders if is_in(path, folder) and len(folder) > len(above)]
        above = max(folders, key=len, default=above)
        return os.fsdecode(path[len(above.rstrip(b"/")) :].lstrip(b"/"))


def below_root(path: bytes, allowed_there: Sequence[str]) -> str | None:
    """A producer's path below the innermost of these roots, by its name; None if it is below none."""
    shown = _as_text(path)
    above = [root.rstrip("/") + "/" for root in allowed_there if shown.startswith(root.rstrip("/") + "/")]
    return shown.removeprefix(max(above, key=len)) if above else None


def _as_text(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def is_in(path: bytes, directory: bytes) -> bool:
    """Whether a path is the directory or below it, by its name."""
    return path == directory or path.startswith(directory.rstrip(b"/") + b"/")


MISSING, NOT_A_DIRECTORY = "does not exist", "is not a directory"


def directory_problem(path: bytes, *, is_listed: bool = False) -> str:
    """Why nothing below the directory can be opened, or with `is_listed` why it can't be listed; "" if it can. The text
    continues a sentence that begins with its name. May block: the directory may be on a network file system. It is
    tried, not computed from modes: access lists and network file systems decide otherwise than modes say."""
    inside = os.path.join(path, b".")  # needs the permission to enter the directory, which a stat of itself does not
    try:
        os.stat(inside)
        if is_listed:
            os.close(os.open(inside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except FileNotFoundError:
        return NOT_A_DIRECTORY if os.path.lexists(path) else MISSING
    except NotADirectoryError:
        return NOT_A_DIRECTORY
    except PermissionError:
        return f"can't be accessed: this user has no permission on {os.fsdecode(_refusing(path))}"
    except OSError as error:
        return f"can't be accessed: {error.strerror}"
    return ""


def advice_for(problem: str) -> str:
    """What helps against such a problem, if it is not another name."""
    if problem in (MISSING, NOT_A_DIRECTORY):
        return "create it"
    return "give this user the permissions r and x on it, and x on the directories above it"


def _refusing(path: bytes) -> bytes:
    """The first directory on the way that does not let this user in; the path itself if all do."""
    names = os.path.abspath(path).split(b"/")
    for count in range(1, len(names) + 1):
        above = b"/".join(names[:count]) or b"/"
        try:
            os.stat(os.path.join(above, b"."))
        except PermissionError:
            return above
        except OSError:
            break
    return path
