"""knows() for brokers that read a ledger entry as quickly as a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fileq.brokers.types import LedgerEntry


class _Ledger(Protocol):
    def lookup(self, paths: Sequence[bytes]) -> list[LedgerEntry | None]: ...


def newest_versions(ledger: _Ledger, versions: Sequence[tuple[bytes, str]]) -> list[bool]:
    """Whether each signature is that of the newest version of its path, see Broker.knows()."""
    entries = ledger.lookup([path for path, _ in versions])
    return [
        entry is not None and entry.is_newest(signature)
        for entry, (_, signature) in zip(entries, versions, strict=True)
    ]
