"""The events that brokers publish, decoded: those of jobs, and those of batches, which have no job."""

from __future__ import annotations

import msgspec

from fileq.brokers.types import WireEvent


class PublishedBatchEvent(WireEvent, frozen=True):
    """What happened to a batch: a brokers.batches.BatchWireEvent with the fields of a job event, which are empty, so
    that a program can follow both kinds of events."""

    batch_id: str = ""
    total: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    deleted: int = 0


_BATCH = b'{"event":"batch:'
_decode = msgspec.json.Decoder(WireEvent).decode
_decode_batch = msgspec.json.Decoder(PublishedBatchEvent).decode


def decode_event(raw: bytes) -> WireEvent:
    return _decode_batch(raw) if raw.startswith(_BATCH) else _decode(raw)
