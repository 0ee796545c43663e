"""Stores the inodes and hashes of signatures apart from the rest of a ledger entry.

Releases that know only `<size>-<mtime>` find that form in an entry and compare it. They ignore the marks, and drop them
when they write the entry. So two releases can share a ledger, and neither enqueues a known file again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from fileq.core.job import split_signature

Versions: TypeAlias = tuple[tuple[str, str], ...]


def split_marks(versions: Versions) -> tuple[Versions, list[str]]:
    """The versions with short signatures, and the mark of each. Marks that are empty up to the end are left out."""
    parts = [split_signature(signature) for signature, _ in versions]
    marks = [part.mark for part in parts]
    while marks and not marks[-1]:
        del marks[-1]
    if not marks:
        return versions, marks
    return tuple((part.short, id) for part, (_, id) in zip(parts, versions, strict=True)), marks


def join_marks(versions: Sequence[tuple[str, str]], marks: Sequence[str]) -> Versions:
    """The opposite. Marks without a version are ignored: another program wrote them."""
    marked = [(f"{short}-{mark}" if mark else short, id) for (short, id), mark in zip(versions, marks, strict=False)]
    return (*marked, *versions[len(marked) :])
