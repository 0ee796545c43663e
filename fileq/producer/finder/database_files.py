"""The files of the SQLite broker, which may lie inside scan_dir and never become jobs."""

from __future__ import annotations

import os
import re

from fileq.config import Config

# The side files that brokers/sqlite keeps next to its database.
_SIDE_FILES = rb"(-wal|-shm|-journal|-lock|-listen)?"
_NO_FILE = b"\0"  # no file name contains it


class DatabaseFiles:
    """Recognises the database and its side files. With another broker there are none."""

    def __init__(self, config: Config) -> None:
        self._directory, self.name = os.path.split(os.path.realpath(os.fsencode(config.sqlite.path)))
        self._names = re.compile(re.escape(self.name) + _SIDE_FILES)
        if config.broker_kind != "sqlite":
            self.name = _NO_FILE

    def owns(self, directory: bytes, name: bytes) -> bool:
        return self._names.fullmatch(name) is not None and os.path.realpath(directory) == self._directory
