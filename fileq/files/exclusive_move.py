"""Gives a file a new name or a new directory, and never replaces another file.

The name is taken and the check that it is free is one step of the file system, so several processes can move files to
the same names at the same time. A name is found by trying it, never by looking first. Others may write to the
directories, so both are open, and files are named in them: no link leads to another directory.

What a kill -9 leaves: the file under its old or its new name. On a file system without RENAME_NOREPLACE also under
both, or beside an empty file of the new name. Of a copy to another file system, the file under its old name, and
perhaps a copy: complete under the new name, or incomplete under a private name (`is_private`), which no producer takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from typing import NamedTuple

from fileq.files.beneath import open_regular_in

PREFIX, SUFFIX = b".fileq-", b".tmp"  # the default of producer.exclude_globs matches it too
# A file of our own in a directory that others may write to: never one that is there already, nor what a link leads to.
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK = 1 << 20
NAME_MAX = 255  # bytes, on every usual file system
NUMBERED = 9  # how many numbers are tried
_RENAME_NOREPLACE = 1
_NO_FLAGS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)


def private_name(key: str) -> bytes:
    """A name for a file that fileq is about to move or delete. `key` must be of letters and digits."""
    return PREFIX + key.encode() + SUFFIX


def is_private(name: bytes) -> bool:
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


class Place(NamedTuple):
    """A name in an open directory. No link leads from the directory to another one, whatever is done to its path."""

    directory: int
    name: bytes


def rename_exclusively(source: Place, target: Place) -> None:
    """Renames a file within its file system. Raises FileExistsError if there is something at `target`. No other process
    may give `source` to another file meanwhile: without RENAME_NOREPLACE it is linked to the new name before the old
    one is removed."""
    if not _rename_noreplace(source, target):
        _link_or_reserve(source, target)


def take(directory: int, name: bytes, private: bytes) -> None:
    """Renames a file to its private name, in the same directory. Raises FileExistsError if that name is taken. Other
    processes may replace the file of this name at any time: what is renamed is what is there in that moment."""
    if _rename_noreplace(Place(directory, name), Place(directory, private)):
        return
    # A link and an unlink could unlink another file. The private name belongs to one job, so no other file has it.
    if exists(Place(directory, private)):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(private))
    os.rename(name, private, src_dir_fd=directory, dst_dir_fd=directory)


def move_into(source: Place, folder: int, name: bytes, unique: str = "") -> bytes:
    """Moves a file of a private name into the folder, as `name` or, if that is taken, with a number. If many are taken,
    `unique` takes the place of the number. Returns its name. Raises OSError and leaves the file where it is if it
    cannot be moved. FileChanged if it was changed during a copy."""
    for target in names_for(name, unique):
        try:
            rename_exclusively(source, Place(folder, target))
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return _copy_into(source, folder, name, unique)
        return target
    raise AssertionError("unreachable")


def names_for(name: bytes, unique: str) -> Iterator[bytes]:
    """The names to try in turn: a.txt, a.1.txt to a.9.txt, a.UNIQUE.txt, then random ones. A folder may hold any number
    of files of one name, so they are not counted. No name is longer than file systems allow."""
    yield name
    stem, extension = os.path.splitext(name)
    if len(extension) > NAME_MAX // 2:
        stem, extension = name, b""
    for n in range(1, NUMBERED + 1):
        yield _with_suffix(stem, b".%d" % n, extension)
    while True:
        yield _with_suffix(stem, f".{unique or secrets.token_hex(8)}".encode(), extension)
        unique = ""


def lasting_names(name: bytes, unique: str) -> Iterator[bytes]:
    return itertools.islice(names_for(name, unique), NUMBERED + 2)


def _with_suffix(stem: bytes, suffix: bytes, extension: bytes) -> bytes:
    kept = stem[: NAME_MAX - len(suffix) - len(extension)]
    for _ in range(3):  # no half a character, if the name is UTF-8
        if len(kept) < len(stem) and stem[len(kept)] & 0xC0 == 0x80:
            kept = kept[:-1]
    return kept + suffix + extension


def exists(place: Place) -> bool:
    try:
        os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class FileChanged(OSError):
    """The file was written to while it was copied. The copy is removed."""


def _copy_into(source: Place, folder: int, name: bytes, unique: str) -> bytes:
    """Moves a regular file to another file system. Its copy is complete and on the disk before it gets its name, and
    the original is removed afterwards."""
    copy = Place(folder, private_name(secrets.token_hex(16)))
    before = _status(source)
    try:
        _copy(source, copy)
        after = _status(source)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise FileChanged(errno.EBUSY, "it was written to while it was copied", os.fsdecode(name))
        target = move_into(copy, folder, name, unique)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy.name, dir_fd=folder)
        raise
    _sync_directory(folder)
    os.unlink(source.name, dir_fd=source.directory)
    return target


def _copy(source: Place, copy: Place) -> None:
    with contextlib.ExitStack() as stack:
        read = open_regular_in(source.directory, source.name)
        stack.callback(os.close, read)
        written = os.open(copy.name, NEW_FILE, 0o600, dir_fd=copy.directory)
        stack.callback(os.close, written)
        _copy_content(read, written)
        _copy_attributes(read, written)
        os.fsync(written)


def _copy_content(read: int, written: int) -> None:
    """Holes stay holes: a sender could fill the disk with a file that takes no space in the inbox. What is appended
    meanwhile is not copied; the caller notices it."""
    size, at = os.fstat(read).st_size, 0
    os.ftruncate(written, size)
    while at < size:
        at, end = _next_data(read, at, size)
        while at < end and (chunk := os.pread(read, min(CHUNK, end - at), at)):
            at += os.pwrite(written, chunk, at)
        if at < end:
            break  # it was truncated meanwhile; the caller notices that too


def _next_data(file: int, at: int, size: int) -> tuple[int, int]:
    """Where the next content begins and ends; the end of the file twice if there is only a hole."""
    try:
        start = os.lseek(file, at, os.SEEK_DATA)
        return start, min(os.lseek(file, start, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size, size
        if error.errno != errno.EINVAL:
            raise
        return at, size  # a file system that does not know


def _copy_attributes(source: int, copy: int) -> None:
    """The permissions, the times and what users can attach. The copy belongs to the user of fileq: with a bit such as
    setuid, or a capability, its sender could run it with the permissions of that user."""
    status = os.fstat(source)
    with contextlib.suppress(OSError):  # a file system without them
        for attribute in os.listxattr(source):
            if attribute.startswith(("user.", "system.posix_acl_")):
                with contextlib.suppress(OSError):
                    os.setxattr(copy, attribute, os.getxattr(source, attribute))
    os.fchmod(copy, stat.S_IMODE(status.st_mode) & 0o777)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _status(place: Place) -> os.stat_result:
    return os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)


def _sync_directory(folder: int) -> None:
    descriptor = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename_noreplace(source: Place, target: Place) -> bool:
    """False if the C library or the file system does not have it."""
    if _renameat2 is None:
        return False
    if _renameat2(source.directory, source.name, target.directory, target.name, _RENAME_NOREPLACE) == 0:
        return True
    if (error := ctypes.get_errno()) in _NO_FLAGS:
        return False
    raise OSError(error, os.strerror(error), os.fsdecode(source.name), None, os.fsdecode(target.name))


def _link_or_reserve(source: Place, target: Place) -> None:
    both = {"src_dir_fd": source.directory, "dst_dir_fd": target.directory}
    try:
        os.link(source.name, target.name, follow_symlinks=False, **both)
    except FileExistsError:
        # A process that was killed here has linked it already.
        if not os.path.samestat(_status(source), _status(target)):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # An empty file of our own reserves the name; the rename replaces only that.
        os.close(os.open(target.name, NEW_FILE, 0o600, dir_fd=target.directory))
        os.rename(source.name, target.name, **both)
        return
    os.unlink(source.name, dir_fd=source.directory)


def _load() -> ctypes._NamedFuncPointer | None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        function = libc.renameat2
    except AttributeError:  # a C library that does not have it
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function


_renameat2 = _load()
