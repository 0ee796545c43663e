"""Who can open the files of a database: their modes, their owners and their kinds.

A user who can open one of these files, even only to read it, can lock it and so stop the queue. New files are therefore
readable and writable for their owner only, and existing ones of this user are narrowed. A file that another user has
put at the name of a side file, or a link there, is refused and not used.

Never opens the database, its log (`-wal`) or its index (`-shm`): closing a descriptor of such a file would release the
locks that SQLite holds on it in this process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat

from fileq.core.errors import BrokerError

NEW_MODE = 0o600
_WIDEST_MODE = 0o640
_OTHERS = 0o007
_OPENED_BY_SQLITE = ("-wal", "-shm", "-journal")  # beside the file that a link at the database's path leads to


def protect_database(path: str, *, create: bool) -> os.stat_result:
    """Creates the file if it is missing, narrows it and what SQLite keeps beside it, and returns its status.

    With `create`, which all have who write, a file that can't be written is refused: SQLite would open it to read, and
    every write would fail like one in an outage. A kill -9 leaves an empty file, which is a database without tables.
    Raises OSError or BrokerError."""
    real = os.path.realpath(path)
    if create:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(real, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_MODE))
        if not os.access(real, os.R_OK | os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, "can't be read and written", real)
    database = os.stat(real)
    if database.st_uid == os.geteuid():
        _narrow(real, database, narrowed(database.st_mode))
    else:
        check_writers(real, database)
    for suffix in _OPENED_BY_SQLITE:
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(real + suffix)
            check_side_file(real + suffix, status, database)
            if status.st_uid == os.geteuid():
                _narrow(real + suffix, status, narrowed(status.st_mode) & narrowed(database.st_mode))
    return database


def open_side_file(path: str, database: os.stat_result | None = None, *, writes: bool = False) -> int:
    """A descriptor of this lock file, which is created if it is missing and narrowed if this user owns it.

    `database` is the status of the database beside it. Raises OSError, or BrokerError for a file that is not ours."""
    # flock needs no more than to read. Without waiting: opening a named pipe would wait for its other end.
    flags = (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    mode = NEW_MODE if database is None else narrowed(database.st_mode)
    try:
        fd = os.open(path, flags | os.O_CREAT, mode)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            check_side_file(path, os.lstat(path), database)  # names what is there, if that is the cause
        raise
    try:
        status = os.fstat(fd)
        check_side_file(path, status, database)
        if os.geteuid() == 0 and database is not None and status.st_uid == 0 != database.st_uid:
            os.fchown(fd, database.st_uid, database.st_gid)  # else the user of the database could not open it
        if os.geteuid() in (0, status.st_uid):
            _narrow(fd, status, narrowed(status.st_mode) & mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_side_file(path: str, status: os.stat_result, database: os.stat_result | None) -> None:
    """Raises BrokerError unless it is a regular file of this user, of the database's owner or of root."""
    if stat.S_ISLNK(status.st_mode):
        raise _refused(path, "is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise _refused(path, "is not a regular file")
    trusted = {0, os.geteuid()} | (set() if database is None else {database.st_uid})
    if status.st_uid not in trusted:
        raise _refused(path, f"belongs to the user {_name(status.st_uid)}, who could stop the queue with it")


def check_writers(path: str, database: os.stat_result) -> None:
    """Raises BrokerError for a database of another user that every user can write to: any of them may have chosen its
    jobs, which this user would run."""
    if database.st_mode & stat.S_IWOTH:
        raise BrokerError(
            f"{path} belongs to the user {_name(database.st_uid)}, and every user can write to it (mode "
            f"{stat.S_IMODE(database.st_mode):04o}); fileq does not use it: if its jobs are yours, "
            f"'chmod 600 {path}' keeps other users out"
        )


def narrowed(mode: int) -> int:
    """The permissions that a file of this mode keeps: never wider than 0640, and 0600 if all users could open it."""
    return mode & (NEW_MODE if mode & _OTHERS else _WIDEST_MODE)


def _narrow(file: int | str, status: os.stat_result, mode: int) -> None:
    if stat.S_IMODE(status.st_mode) != mode:
        with contextlib.suppress(PermissionError):  # a file system without modes, such as vfat
            os.chmod(file, mode)


def _refused(path: str, why: str) -> BrokerError:
    return BrokerError(f"{path} {why}; fileq does not use it: remove it, or set sqlite.path to another directory")


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)
