"""Checks where the database is: its directory, its file system and its disk. Creates and changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from fileq.core.finding import Finding, sound, wrong
from fileq.files.paths import MISSING, advice_for, directory_problem
from fileq.files.status import filesystem_type, is_network

_SUFFIXES = ("", "-wal", "-shm", "-lock", "-listen", "-leases")
LEAST_FREE_BYTES = 100 * 1024 * 1024


def examine_location(path: str) -> Iterator[Finding]:
    """Works whether or not the database exists yet."""
    path = os.path.abspath(path)
    directory = os.path.dirname(path)
    if what := directory_problem(os.fsencode(directory)):
        advice = f"mkdir -p {directory}" if what == MISSING else advice_for(what)
        yield wrong("database directory", f"{directory} {what}", f"{advice}, or set sqlite.path")
        return
    existing = [path + suffix for suffix in _SUFFIXES if os.path.exists(path + suffix)]
    unwritable = [file for file in existing if not os.access(file, os.R_OK | os.W_OK, effective_ids=True)]
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        yield wrong("database directory", f"{directory} is not writable", "give this user write permission there")
    elif unwritable:
        yield wrong("database directory", f"{unwritable[0]} is not writable", "give this user write permission on it")
    else:
        yield sound("database directory", f"{directory} is writable")
    filesystem = filesystem_type(path)
    if is_network(filesystem):
        yield wrong("file system", f"{filesystem}, where locks are not reliable", "set sqlite.path to a local disk")
    else:
        yield sound("file system", f"{filesystem or 'unknown'}, local")
    yield _space(directory)


def _space(directory: str) -> Finding:
    free = shutil.disk_usage(directory).free
    shown = f"{free / 1e9:.1f} GB free" if free >= 1e9 else f"{free / 1e6:.0f} MB free"
    if free < LEAST_FREE_BYTES:
        return wrong(
            "disk space", f"{shown} in {directory}", "free some space: jobs can't be enqueued or settled without it"
        )
    return sound("disk space", shown)
