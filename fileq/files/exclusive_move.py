"""Gives a file a new name or a new directory, and never replaces another file.

The name is taken and the check that it is free is one step of the file system, so several processes can move files to
the same names at the same time. A name is found by trying it, never by looking first.

What a kill -9 leaves: the file under its old or its new name. On a file system without RENAME_NOREPLACE also under
both, or beside an empty file of the new name. Of a copy to another file system, the file under its old name, and
perhaps a copy: complete under the new name, or incomplete under a private name (`is_private`), which no producer takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator

PREFIX, SUFFIX = b".fileq-", b".tmp"  # the default of producer.exclude_globs matches it too
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_NO_FLAGS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)


def private_name(key: str) -> bytes:
    """A name for a file that fileq is about to move or delete. `key` must be of letters and digits."""
    return PREFIX + key.encode() + SUFFIX


def is_private(name: bytes) -> bool:
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


def rename_exclusively(path: bytes, target: bytes) -> None:
    """Renames a file within its file system. Raises FileExistsError if there is something at `target`.

    No other process may give `path` to another file meanwhile: without RENAME_NOREPLACE it is linked to the new name
    before the old one is removed."""
    error = _rename_noreplace(path, target)
    if error in _NO_FLAGS:
        _link_or_reserve(path, target)
    elif error:
        raise OSError(error, os.strerror(error), os.fsdecode(path), None, os.fsdecode(target))


def take(path: bytes, private: bytes) -> None:
    """Renames a file to its private name, in the same directory. Raises FileExistsError if that name is taken.

    Other processes may replace the file at `path` at any time: what is renamed is what is there in that moment."""
    error = _rename_noreplace(path, private)
    if error in _NO_FLAGS:
        # A link and an unlink could unlink another file. The private name belongs to one job, so no other file has it.
        if os.path.lexists(private):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(private))
        os.rename(path, private)
    elif error:
        raise OSError(error, os.strerror(error), os.fsdecode(path), None, os.fsdecode(private))


def move_into(path: bytes, folder: bytes, name: bytes) -> bytes:
    """Moves a file of a private name into the folder, as `name` or, if that is taken, with a number. Returns its path.

    Raises OSError and leaves the file at `path` if it cannot be moved. FileChanged if it was changed during a copy."""
    for target in targets(folder, name):
        try:
            rename_exclusively(path, target)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return _copy_into(path, folder, name)
        return target
    raise AssertionError("unreachable")


def targets(folder: bytes, name: bytes) -> Iterator[bytes]:
    """The paths to try in turn: a.txt, a.1.txt, a.2.txt and so on."""
    yield os.path.join(folder, name)
    stem, extension = os.path.splitext(name)
    n = 0
    while True:
        n += 1
        yield os.path.join(folder, b"%s.%d%s" % (stem, n, extension))


class FileChanged(OSError):
    """The file was written to while it was copied. The copy is removed."""


def _copy_into(path: bytes, folder: bytes, name: bytes) -> bytes:
    """Moves the file to another file system. Its copy is complete and on the disk before it gets its name, and the
    original is removed afterwards."""
    copy = os.path.join(folder, private_name(secrets.token_hex(16)))
    before = os.lstat(path)
    try:
        if stat.S_ISLNK(before.st_mode):
            os.symlink(os.readlink(path), copy)
        else:
            _copy(path, copy)
        after = os.lstat(path)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise FileChanged(errno.EBUSY, "it was written to while it was copied", os.fsdecode(path))
        target = move_into(copy, folder, name)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy)
        raise
    _sync_directory(folder)
    os.unlink(path)
    return target


def _copy(path: bytes, copy: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(path, "rb") as source, open(os.open(copy, flags, 0o600), "wb") as destination:
        shutil.copyfileobj(source, destination, 1 << 20)
        destination.flush()  # before the modification time is set
        shutil.copystat(path, copy)
        os.fsync(destination.fileno())


def _sync_directory(folder: bytes) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename_noreplace(path: bytes, target: bytes) -> int:
    """0, or the number of the error."""
    if _renameat2 is None:
        return errno.ENOSYS
    if _renameat2(_AT_FDCWD, path, _AT_FDCWD, target, _RENAME_NOREPLACE) == 0:
        return 0
    return ctypes.get_errno()


def _link_or_reserve(path: bytes, target: bytes) -> None:
    try:
        os.link(path, target, follow_symlinks=False)
    except FileExistsError:
        # A process that was killed here has linked it already.
        if not os.path.samestat(os.lstat(path), os.lstat(target)):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # An empty file of our own reserves the name; the rename replaces only that.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.rename(path, target)
        return
    os.unlink(path)


def _load() -> ctypes._NamedFuncPointer | None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        function = libc.renameat2
    except AttributeError:  # a C library that does not have it
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function


_renameat2 = _load()
