"""Ledger entries as they are in their table: JSON, which older releases read too."""

from __future__ import annotations

import msgspec

from fileq.brokers.ledger_marks import join_marks, split_marks
from fileq.brokers.types import LedgerEntry


class _MarkedEntry(msgspec.Struct, frozen=True):
    """A LedgerEntry with short signatures, and their marks in a field that older releases ignore."""

    versions: tuple[tuple[str, str], ...]
    missing_since_ms: int
    device: str
    marks: tuple[str, ...] = ()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_MarkedEntry)


def encode_ledger_entry(entry: LedgerEntry) -> bytes:
    versions, marks = split_marks(entry.versions)
    if not marks:
        return _encoder.encode(entry)
    return _encoder.encode(_MarkedEntry(versions, entry.missing_since_ms, entry.device, tuple(marks)))


def decode_ledger_entry(row: bytes) -> LedgerEntry:
    stored = _decoder.decode(row)
    versions = join_marks(stored.versions, stored.marks) if stored.marks else stored.versions
    return LedgerEntry(versions, stored.missing_since_ms, stored.device)
