"""Opens a file that must lie below one of several roots: no link leads out of them, at no moment.

A check of the path before the opening could be raced: another program replaces the file, or a directory above it, by a
link in between. Here the kernel follows the path once. The result is a descriptor, which refers to the same file even
if the path is renamed or replaced afterwards.

Links that stay below the roots are followed:
1. The path is opened below its root, in one call (openat2). This follows relative links that stay below the root.
2. Where that fails, because a link is absolute or leads to another root, the links are resolved, and the real path,
   which is below a root, is opened without following any link. A link that appeared meanwhile makes that fail; then the
   links are resolved again.
Without openat2 the path is opened directory by directory, without following links: that is as safe, and slower.

The roots and the directories above them are trusted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence

from fileq.files import openat2 as kernel

# Only a reference to the file: needs no permission to read it, and a pipe or a device is not opened.
_REFERENCE = os.O_PATH | os.O_CLOEXEC
_MAX_TRIES = 20
# Perhaps a link: ENOTDIR is what a link in the place of a directory gives where no link is followed.
_HAS_LINK = frozenset((errno.EXDEV, errno.ELOOP, errno.EAGAIN, errno.ENOTDIR))
_HAS_CHANGED = _HAS_LINK | {errno.ENOENT}


class LeadsOutside(Exception):
    """The path leads outside of every root."""


def open_beneath(path: bytes, roots: Sequence[bytes]) -> int:
    """A descriptor (O_PATH) of what is at the path, of any type but a link; the caller closes it.

    Raises LeadsOutside, OSError, or ValueError if no file can have this name."""
    if b"\0" in path:
        raise ValueError("embedded null byte")
    for root in roots:
        above = root if root.endswith(b"/") else root + b"/"
        if path.startswith(above):
            try:
                return _open_below(root, path[len(above) :])
            except OSError as error:
                if error.errno not in _HAS_LINK:
                    raise
            break
    return _open_resolved(path, roots)


def open_without_links(path: bytes, roots: Sequence[bytes]) -> int:
    """Like open_beneath(), but no link below the root is followed, also none that stays there."""
    if b"\0" in path:
        raise ValueError("embedded null byte")
    for root in roots:
        above = root if root.endswith(b"/") else root + b"/"
        if path.startswith(above):
            directory = os.open(root, _REFERENCE | os.O_DIRECTORY)
            try:
                return _open_by_steps(directory, path[len(above) :])
            finally:
                os.close(directory)
    raise LeadsOutside


def is_below(real_path: bytes, roots: Iterable[bytes]) -> bool:
    """Whether a path without links is below one of the roots, which may be links."""
    return any(real_path.startswith(os.path.realpath(root).rstrip(b"/") + b"/") for root in roots)


def _open_below(root: bytes, relative: bytes) -> int:
    directory = os.open(root, _REFERENCE | os.O_DIRECTORY)
    try:
        if kernel.is_available():
            return kernel.openat2(directory, relative, _REFERENCE, kernel.BENEATH | kernel.NO_MAGICLINKS)
        return _open_by_steps(directory, relative)
    finally:
        os.close(directory)


def _open_resolved(path: bytes, roots: Sequence[bytes]) -> int:
    for _ in range(_MAX_TRIES):
        try:
            real_path = os.path.realpath(path, strict=True)
        except OSError as error:
            if error.errno == errno.EINVAL:  # no longer a link when it was read
                continue
            raise
        if not is_below(real_path, roots):
            raise LeadsOutside
        try:
            return _open_without_links(real_path)
        except OSError as error:
            if error.errno not in _HAS_CHANGED:
                raise
    raise OSError(errno.ELOOP, "the links of its path keep changing", path)


def _open_without_links(real_path: bytes) -> int:
    if kernel.is_available():
        return kernel.openat2(kernel.AT_FDCWD, real_path, _REFERENCE, kernel.NO_SYMLINKS)
    top = os.open(b"/", _REFERENCE | os.O_DIRECTORY)
    try:
        return _open_by_steps(top, real_path[1:])
    finally:
        os.close(top)


def _open_by_steps(directory: int, relative: bytes) -> int:
    """Opens each name of the path below the one before. A link is an error: ELOOP, or ENOTDIR if it is not last."""
    names = relative.split(b"/")
    if not {b"", b".", b".."}.isdisjoint(names):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), relative)
    fd = os.open(names[0], _REFERENCE | os.O_NOFOLLOW, dir_fd=directory)
    for name in names[1:]:
        above = fd
        try:
            fd = os.open(name, _REFERENCE | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
    return fd
