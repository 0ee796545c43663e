"""The password in `redis.password_file`. Read at start, and again for each new connection, so that a rotated password
needs no restart."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def read_password(path: str | os.PathLike[str]) -> str:
    """The content without the newline at its end. Raises OSError or UnicodeDecodeError."""
    return Path(path).read_text(encoding="utf-8").rstrip("\r\n")


class PasswordFile:
    """The password that the file holds now. While the file is missing, empty or not text: the last one read."""

    def __init__(self, path: str, password: str) -> None:
        self._path = os.path.abspath(path)
        self._password = password

    def current(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):  # the file is being replaced
            self._password = read_password(self._path) or self._password
        return self._password
