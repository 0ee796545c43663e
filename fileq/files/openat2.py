"""The system call openat2, which Python does not have: it opens a path and limits what its links may do, in one step.

Linux has it since 5.6. Sandboxes may refuse it, so is_available() must be asked first.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct

AT_FDCWD = -100
NO_MAGICLINKS, NO_SYMLINKS, BENEATH = 0x02, 0x04, 0x08
_NUMBER = 437  # the same on every architecture that Python runs on, but for alpha
_HOW = struct.Struct("QQQ")  # flags, mode, resolve


def openat2(directory: int, path: bytes, flags: int, resolve: int) -> int:
    """Like os.open(path, flags, dir_fd=directory). `resolve` is a sum of the constants above.

    Raises OSError: EXDEV if the path leads out of the directory (BENEATH), ELOOP if it has a link (NO_SYMLINKS), EAGAIN
    if the kernel could not decide because a directory was renamed meanwhile (BENEATH, and the path has `..`)."""
    if b"\0" in path:
        raise ValueError("embedded null byte")  # C would ignore what follows it
    how = _HOW.pack(flags, 0, resolve)
    syscall = _syscall()
    while True:
        fd: int = syscall(_NUMBER, directory, path, how, _HOW.size)
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)


@functools.cache
def is_available() -> bool:
    """Whether the kernel has the call and no sandbox refuses it."""
    try:
        os.close(openat2(AT_FDCWD, b"/", os.O_PATH | os.O_CLOEXEC, NO_SYMLINKS))
    except OSError:
        return False
    return True


@functools.cache
def _syscall() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long)
    function.restype = ctypes.c_long
    return function
