"""Finds files whose job left no trace: the ledger knows the version, so no producer will enqueue it again, but there is
no record and no list holds the job.

The record of an ended job expires, so a missing record alone proves nothing. It is a proof if all of this is true: the
balance says that jobs are missing; the version is younger than worker.history_ttl, so its record can't have expired; no
list of ended jobs is full and nothing was deleted in that time, so its record can't have been removed with the oldest
entries or by hand; and there are not more such files than missing jobs.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census
from fileq.config import Config
from fileq.queries.job_queries import read_signature

_PAGE = 500


class LostFile(Struct, frozen=True):
    """A version of a file whose job does not exist any more."""

    path: bytes
    signature: str
    id: str


def find_lost_files(broker: FullBroker, config: Config, census: Census, missing: int) -> list[LostFile]:
    """The files that explain `missing` jobs; empty if that is not certain."""
    if missing <= 0 or not _records_can_be_trusted(broker, config, census):
        return []
    since_ms = census.now_ms - int(config.worker.history_ttl * 1000)
    found: list[LostFile] = []
    for page in _recent_versions(broker, since_ms, census.now_ms):
        records = broker.records([file.id for file in page])
        found += [file for file, record in zip(page, records, strict=True) if record is None]
        if len(found) > missing:
            return []
    return found


def _records_can_be_trusted(broker: FullBroker, config: Config, census: Census) -> bool:
    """Whether every job that ended within worker.history_ttl still has its record."""
    if max(census.completed, census.cancelled) >= config.worker.completed_max:
        return False
    hours = broker.hourly(int(config.worker.history_ttl / 3600) + 2)
    return not any(counters.get("deleted") for counters in hours.values())


def _recent_versions(broker: FullBroker, since_ms: int, now_ms: int) -> Iterator[list[LostFile]]:
    page: list[LostFile] = []
    for path, entry in broker.ledger(b""):
        for signature, id in entry.versions[:1]:
            _, modified_ns = read_signature(signature)
            # A modification time in the future says nothing about the age of the version.
            if modified_ns is not None and since_ms < modified_ns // 1_000_000 <= now_ms:
                page.append(LostFile(path, signature, id))
        if len(page) >= _PAGE:
            yield page
            page = []
    if page:
        yield page
