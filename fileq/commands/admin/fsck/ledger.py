"""Files whose job left no trace: the ledger knows the version, so no producer will enqueue it again, and no record and
no list tells of the job.

An ended job's record expires, so a missing one proves nothing by itself. It does where all of this holds: the law says
that jobs are missing; the version is younger than worker.history_ttl, so its record can't have expired; no list of
ended jobs is full and nothing was deleted in that time, so its record can't have gone with a list's end or by hand; and
there are no more such files than jobs are missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census
from fileq.commands.admin.looking import read_signature
from fileq.config import Config

_PAGE = 500


class Forsaken(Struct, frozen=True):
    """A version of a file whose job is gone."""

    path: bytes
    signature: str
    id: str


def forsaken(broker: FullBroker, config: Config, census: Census, missing: int) -> list[Forsaken]:
    """The files that account for what is missing; none where that is not certain."""
    if missing <= 0 or not _records_can_be_trusted(broker, config, census):
        return []
    since_ms = census.now_ms - int(config.worker.history_ttl * 1000)
    found: list[Forsaken] = []
    for page in _young(broker, since_ms, census.now_ms):
        records = broker.records([one.id for one in page])
        found += [one for one, record in zip(page, records, strict=True) if record is None]
        if len(found) > missing:
            return []
    return found


def _records_can_be_trusted(broker: FullBroker, config: Config, census: Census) -> bool:
    """Whether every job that ended within the history's time still has its record."""
    if max(census.completed, census.cancelled) >= config.worker.completed_max:
        return False
    hours = broker.hourly(int(config.worker.history_ttl / 3600) + 2)
    return not any(counters.get("deleted") for counters in hours.values())


def _young(broker: FullBroker, since_ms: int, now_ms: int) -> Iterator[list[Forsaken]]:
    page: list[Forsaken] = []
    for path, entry in broker.ledger(b""):
        for signature, id in entry.versions[:1]:
            _, modified_ns = read_signature(signature)
            # A time in the future is no time at all.
            if modified_ns is not None and since_ms < modified_ns // 1_000_000 <= now_ms:
                page.append(Forsaken(path, signature, id))
        if len(page) >= _PAGE:
            yield page
            page = []
    if page:
        yield page
