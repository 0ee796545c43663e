"""Forgets files that are gone for good, and only those: the one way in which the ledger shrinks.

An entry goes when its file was missing for a whole day on the very device it was last seen on, and nothing went wrong
in between. A volume that is not mounted shows another device in its place, and so forgets nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from fileq.brokers.protocol import Broker
from fileq.brokers.types import LedgerEntry
from fileq.producer.places import Places

DAY_MS = 24 * 3600 * 1000
PAGE = 500
Change = tuple[bytes, LedgerEntry, LedgerEntry | None]


def seen(entry: LedgerEntry, device: str = "") -> LedgerEntry:
    """The entry of a file that is there."""
    return LedgerEntry(entry.versions, device=device or entry.device)


def sweep(
    broker: Broker,
    root: bytes,
    places: Places,
    counts: Callable[[bytes], bool],
    now_ms: int,
    after_ms: int = DAY_MS,
) -> Iterator[int]:
    """Goes through the entries below a directory that this producer answers for, page by page; each step says how
    many it forgot."""
    for page in _pages(broker, root):
        places.refresh()
        changes = [
            change
            for path, entry in page
            for change in _verdict(path, entry, places.device(os.path.dirname(path)), now_ms, after_ms)
            if counts(path)
        ]
        # A volume that went while we looked makes files seem missing.
        yield 0 if places.refresh() else _carry_out(broker, changes)


def pardon(broker: Broker, root: bytes) -> Iterator[int]:
    """Takes back every mark: a scan went wrong, so the day begins anew. Forgets nothing."""
    for page in _pages(broker, root):
        yield _carry_out(broker, [(path, entry, seen(entry)) for path, entry in page if entry.missing_since_ms])


def _pages(broker: Broker, root: bytes) -> Iterator[list[tuple[bytes, LedgerEntry]]]:
    page = []
    for item in broker.ledger(root.rstrip(b"/") + b"/"):
        page.append(item)
        if len(page) == PAGE:
            yield page
            page = []
    yield page


def _carry_out(broker: Broker, changes: list[Change]) -> int:
    """An entry that changed meanwhile is left alone: somebody has seen its file."""
    if not changes:
        return 0
    done = broker.update_ledger(changes)
    return sum(ok and becomes is None for ok, (_, _, becomes) in zip(done, changes, strict=True))


def _verdict(path: bytes, entry: LedgerEntry, device: str, now_ms: int, after_ms: int) -> Iterator[Change]:
    is_there = _is_there(path)
    if is_there is None:
        return
    if is_there:
        becomes: LedgerEntry | None = seen(entry, device)
    elif device != entry.device:
        becomes = seen(entry)
    elif not entry.missing_since_ms:
        becomes = LedgerEntry(entry.versions, now_ms, device)
    elif now_ms - entry.missing_since_ms >= after_ms:
        becomes = None
    else:
        return
    if becomes != entry:
        yield path, entry, becomes


def _is_there(path: bytes) -> bool | None:
    """None where it can't be told: that is no reason to forget."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return None
    return True
