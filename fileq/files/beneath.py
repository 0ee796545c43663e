"""Opens a file that must lie below one of several roots: no link leads out of them, at no moment.

A check of the path before the opening could be raced: another program replaces the file, or a directory above it, by a
link in between. Here the path is opened name by name, each in the directory opened before it, and never through a link.
The result is a descriptor, which refers to the same file even if the path is renamed or replaced afterwards.

Links that stay below the roots are followed: where a path has one, all its links are resolved, and the real path, which
is below a root, is opened without following any link. A link that appeared meanwhile makes that fail; then the links
are resolved again.

open_without_links() and open_regular() follow no link below the root at all. They are for directories that others may
write to, where a link would choose which file fileq reads or replaces.

The roots and the directories above them are trusted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress

# Only a reference to the file: needs no permission to read it, and a pipe or a device is not opened.
_REFERENCE = os.O_PATH | os.O_CLOEXEC
_DIRECTORY = _REFERENCE | os.O_DIRECTORY | os.O_NOFOLLOW
# A pipe that waits for a writer, or a lease that another process holds on the file, does not block.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_TRIES = 20
# Perhaps a link: ENOTDIR is what one in the place of a directory gives. EXDEV: a path that does not only go down.
_HAS_LINK = frozenset((errno.EXDEV, errno.ELOOP, errno.ENOTDIR))
_REASONS = {
    errno.ELOOP: "a link leads to it, and no link is followed here",
    errno.ENOTDIR: "a part of its path is a link or a file, and no link is followed here",
}
_HAS_CHANGED = _HAS_LINK | {errno.ENOENT}


class LeadsOutside(OSError):
    def __init__(self, path: bytes) -> None:
        super().__init__(errno.EXDEV, "it leads outside of its roots", path)


class NotRegular(OSError):
    """What is at the path is not a regular file, but a directory, a pipe, a socket or a device."""


def open_beneath(path: bytes, roots: Sequence[bytes]) -> int:
    """A descriptor (O_PATH) of what is at the path, of any type but a link; the caller closes it. Raises LeadsOutside,
    OSError, or ValueError if no file can have this name."""
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
    """Like open_beneath(), but no link below the root is followed, also none that stays there: OSError (ELOOP, or
    ENOTDIR for a link in the place of a directory). The root itself may be opened too."""
    top, relative = _open_root(path, roots)
    if not relative:
        return top
    try:
        return _open_in(top, relative, _REFERENCE)
    finally:
        os.close(top)


def open_directory(path: bytes, roots: Sequence[bytes], *, follows_links: bool = False) -> int:
    """A descriptor of the directory at the path, which may be a root, to list it and to name what is in it; the caller
    closes it. No link below the root is followed, or with `follows_links` only those that stay below the roots."""
    if follows_links:
        reference = open_without_links(path, (path,)) if path in roots else open_beneath(path, roots)
    else:
        reference = open_without_links(path, roots)
    try:
        return os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=reference)
    finally:
        os.close(reference)


def open_regular(path: bytes, roots: Sequence[bytes]) -> int:
    """A descriptor for reading of the regular file at the path; the caller closes it. Follows no link below the root,
    and does not wait for a pipe. Raises LeadsOutside, NotRegular, OSError, or ValueError if no file can have this
    name."""
    top, relative = _open_root(path, roots)
    try:
        return open_regular_in(top, relative)
    finally:
        os.close(top)


def open_regular_in(directory: int, relative: bytes) -> int:
    """As open_regular(), for a path below an open directory."""
    try:
        fd = _open_in(directory, relative, _READ)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise NotRegular(errno.EINVAL, "not a regular file", relative) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegular(errno.EINVAL, "not a regular file", relative)
    return fd


def open_directory_in(directory: int, relative: bytes) -> int:
    """A reference to the directory at a path below an open one, without following any link; the caller closes it."""
    return _open_in(directory, relative, _DIRECTORY) if relative else os.dup(directory)


def make_directories(directory: int, relative: bytes) -> int:
    """A reference to the directory at a path below an open one. Makes what is missing, and follows no link. The caller
    closes it. Raises OSError, for a link ENOTDIR."""
    fd = os.dup(directory)
    for name in _names_of(relative) if relative else ():
        above = fd
        try:
            try:
                fd = os.open(name, _DIRECTORY, dir_fd=above)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=above)
                fd = os.open(name, _DIRECTORY, dir_fd=above)
        except OSError as error:
            raise _named(error, relative) from None
        finally:
            os.close(above)
    return fd


def is_below(real_path: bytes, roots: Iterable[bytes]) -> bool:
    """Whether a path without links is below one of the roots, which may be links."""
    return any(real_path.startswith(os.path.realpath(root).rstrip(b"/") + b"/") for root in roots)


def _open_root(path: bytes, roots: Sequence[bytes]) -> tuple[int, bytes]:
    """The root of a path, opened, and the path below it."""
    for root in roots:
        above = root.rstrip(b"/") + b"/"
        if path == root or path.startswith(above):
            return os.open(root, _REFERENCE | os.O_DIRECTORY), path[len(above) :]
    raise LeadsOutside(path)


def _open_below(root: bytes, relative: bytes) -> int:
    directory = os.open(root, _REFERENCE | os.O_DIRECTORY)
    try:
        return _open_in(directory, relative, _REFERENCE)
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
            raise LeadsOutside(path)
        try:
            return _open_below(b"/", real_path[1:])
        except OSError as error:
            if error.errno not in _HAS_CHANGED:
                raise
    raise OSError(errno.ELOOP, "the links of its path keep changing", path)


def _open_in(directory: int, relative: bytes, flags: int) -> int:
    """What is at a path below an open directory: opens each name of it below the one before. A link is an error: ELOOP,
    or ENOTDIR if it is not last."""
    names = _names_of(relative)
    above = directory
    try:
        for name in names[:-1]:
            fd = os.open(name, _REFERENCE | os.O_NOFOLLOW, dir_fd=above)
            if above != directory:
                os.close(above)
            above = fd
        fd = os.open(names[-1], flags | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        raise _named(error, relative) from None
    finally:
        if above != directory:
            os.close(above)
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, _REASONS[errno.ELOOP], relative)
    return fd


def _named(error: OSError, path: bytes) -> OSError:
    """The error with its reason, where the kernel's words say too little."""
    if error.errno in _REASONS:
        return type(error)(error.errno, _REASONS[error.errno], path)
    return error


def _names_of(relative: bytes) -> list[bytes]:
    """The names of a path that can only go down. Raises OSError for any other path."""
    names = relative.split(b"/")
    if not {b"", b".", b".."}.isdisjoint(names):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), relative)
    return names
