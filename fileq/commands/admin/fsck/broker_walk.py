"""Walks through all lists and all records, one page at a time, and collects candidates for problems.

Lists and records change during the walk, so a candidate proves nothing: check.py must confirm it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

import msgspec

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record, Suspect, UnrecordedJob
from fileq.commands.admin.fsck.report import NAMED, DuplicateJob
from fileq.core.job import Job, State, decode_or_none, raw_id
from fileq.queries.job_summary import waiting_since_ms

CANDIDATES = 10_000  # how many of one kind are kept; fsck --repair finds further ones in its next round
SEARCHES = 1000  # jobs in one call of the broker, which may read a whole list once
_OUR_ID = re.compile(rb'^\{"id":"([^"\\\x00-\x1f]+)","filepath":')
_MAX_BITS, _MIN_BITS = 1 << 27, 1 << 16


class BloomFilter:
    """A set of keys in at most 16 MiB: no false negatives, a few false positives, other ones in each filter."""

    def __init__(self, expected: int) -> None:
        # Without it, a key that one filter reports by mistake would be reported by every filter of this process.
        self._salt = os.urandom(8)
        self._bits = min(_MAX_BITS, max(_MIN_BITS, 1 << (32 * expected).bit_length()))
        self._map = bytearray(self._bits // 8)

    @property
    def size_bytes(self) -> int:
        return len(self._map)

    def add(self, key: tuple[str, str]) -> bool:
        """Adds the key; returns whether it was contained before."""
        was_there = True
        for bit in self._bits_of(key):
            mask = 1 << (bit & 7)
            was_there &= bool(self._map[bit >> 3] & mask)
            self._map[bit >> 3] |= mask
        return was_there

    def __contains__(self, key: tuple[str, str]) -> bool:
        return all(self._map[bit >> 3] & 1 << (bit & 7) for bit in self._bits_of(key))

    def _bits_of(self, key: tuple[str, str]) -> Iterable[int]:
        digest = hash((self._salt, *key)) & 0xFFFF_FFFF_FFFF_FFFF
        first, step = digest & 0xFFFF_FFFF, digest >> 32 | 1
        return ((first + i * step) % self._bits for i in range(4))


class BrokerWalk:
    """What one walk found. `unclaimed` counts jobs in queues that other programs pushed: a claim would adopt them."""

    def __init__(self, broker: FullBroker, queues: Sequence[str], *, expected: int) -> None:
        self._broker = broker
        self._queues = tuple(queues)
        self._maybe_twice: set[str] = set()
        self._seen = BloomFilter(expected)  # (place or "queue", id)
        self.elements = self.records = self.slots = 0
        self.undecodable = 0
        self.unclaimed = 0
        self.unrecorded = 0  # unclaimed jobs without a record
        self.unrecorded_jobs: dict[tuple[str, str], UnrecordedJob] = {}  # by place and id
        self.copies: dict[str, int] = {}
        self.lost: dict[str, Record] = {}
        self.silent: dict[str, Suspect] = {}
        self.unknown_queues: set[str] = set()  # queues of unfinished jobs that this configuration does not have

    def everything(self) -> None:
        self.queues()
        self._scheduled_and_dead()
        self._slots()
        self._all_records()

    # lists

    def queues(self) -> None:
        """Walks through all pending jobs and counts those that are not accounted for."""
        for queue in self._queues:
            for page in self._broker.pages(queue):
                self._queue_page(queue, page)
        if self._maybe_twice:
            self._count_copies()

    def _queue_page(self, queue: str, page: Sequence[bytes]) -> None:
        self.elements += len(page)
        ids = [readable_id(raw) for raw in page]
        records = self._broker.records([id or "" for id in ids])
        for raw, id, record in zip(page, ids, records, strict=True):
            job = decode_or_none(raw)
            self.undecodable += job is None
            if id is None:
                self.unclaimed += 1
                self.unrecorded += 1
                continue
            if self._seen.add(("queue", id)) and len(self._maybe_twice) < CANDIDATES:
                self._maybe_twice.add(id)
            if record is None:
                self.unclaimed += 1
                self.unrecorded += 1
                self._add_unrecorded(queue, raw, job)
            elif not record.queued:
                self.unclaimed += 1
                self.copies[id] = self.copies.get(id, 0) + 1

    def _count_copies(self) -> None:
        """Counts the jobs that the Bloom filter reported twice: they may be copies or false positives."""
        for id, (count, queued) in self._occurrences(self._maybe_twice).items():
            if count > 1 and count > queued:
                self.copies[id] = count
                self.unclaimed += count - queued if queued else 0  # with queued == 0 each one was counted already

    def _occurrences(self, ids: Iterable[str]) -> dict[str, tuple[int, int]]:
        """For each id: how often it is in the queues, and how many of these fileq enqueued."""
        counts = dict.fromkeys(ids, 0)
        for queue in self._queues:
            for page in self._broker.pages(queue):
                for raw in page:
                    id = readable_id(raw)
                    if id is not None and id in counts:
                        counts[id] += 1
        records = self._broker.records(list(counts))
        queued = {record.id: record.queued for record in records if record is not None}
        return {id: (count, queued.get(id, 0)) for id, count in counts.items()}

    def confirm_copies(self) -> None:
        """Counts again: a job that was claimed during the first count is not a copy."""
        now = self._occurrences(self.copies)
        self.copies = {id: count for id, (count, queued) in now.items() if count > queued}

    def _scheduled_and_dead(self) -> None:
        for place in ("scheduled", "dead_letter"):
            for page in self._broker.pages(place):
                self.elements += len(page)
                jobs = [decode_or_none(raw) for raw in page]
                ids = [job.id if job is not None else raw_id(raw) for raw, job in zip(page, jobs, strict=True)]
                for raw, id, job, record in zip(page, ids, jobs, self._broker.records(ids), strict=True):
                    self._seen.add((place, id))
                    self.undecodable += job is None
                    if record is None:
                        self._add_unrecorded(place, raw, job)

    def _slots(self) -> None:
        workers = self._broker.workers()
        self.silent = {suspect.slot: suspect for suspect in self._broker.suspects(sweep=True)}
        held = {view.slot: [view.raw] for view in workers if view.raw}
        held.update((slot, [claim.raw for claim in suspect.claims]) for slot, suspect in self.silent.items())
        self.slots = len({*held, *(view.slot for view in workers)})
        for slot, raws in held.items():
            for raw in raws:
                job = decode_or_none(raw)
                if job is not None and self._broker.records([job.id]) == [None]:
                    self._add_unrecorded("processing", raw, job, slot)

    def _add_unrecorded(self, place: str, raw: bytes, job: Job | None, slot: str = "") -> None:
        record = record_for(place, raw, job, self._queues, slot)
        if record is not None and len(self.unrecorded_jobs) < CANDIDATES:
            self.unrecorded_jobs[place, record.id] = UnrecordedJob(place, record)

    # records

    def _all_records(self) -> None:
        waiting: list[Record] = []  # may be lost; collected, because the broker reads a whole list to check them
        for page in self._broker.ids():
            self.records += len(page)
            found = [record for record in self._broker.records(page) if record is not None]
            alive = (record for record in found if record.state not in (State.COMPLETED, State.CANCELLED, State.DEAD))
            self.unknown_queues.update(record.queue for record in alive if record.queue not in self._queues)
            # Jobs that the walk saw in a list are there. The others may have moved, so the broker checks them.
            unseen = [
                record
                for record in found
                if (record.state is State.PENDING and ("queue", record.id) not in self._seen)
                or (record.state is State.DEAD and ("dead_letter", record.id) not in self._seen)
            ]
            cheap = [r for r in found if r.state in (State.RUNNING, State.SCHEDULED, State.RETRYING)]
            self._keep_lost(cheap)
            waiting += unseen
            if len(waiting) >= SEARCHES:
                self._keep_lost(waiting)
                waiting = []
        self._keep_lost(waiting)

    def _keep_lost(self, records: Sequence[Record]) -> None:
        for record, is_lost in zip(records, self._broker.lost([r.id for r in records]), strict=True):
            if is_lost and len(self.lost) < CANDIDATES:
                self.lost[record.id] = record

    def copies_found(self) -> tuple[DuplicateJob, ...]:
        return tuple(DuplicateJob(id, count) for id, count in sorted(self.copies.items())[:NAMED])


def readable_id(raw: bytes) -> str | None:
    """The id under which a claim of these bytes looks for a record, even if the bytes are not a job."""
    match = _OUR_ID.match(raw)
    if match is not None:
        return match[1].decode(errors="replace")
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    id = decoded.get("id") if isinstance(decoded, dict) else None
    return id if isinstance(id, str) and id else None


def record_for(place: str, raw: bytes, job: Job | None, queues: Sequence[str], slot: str = "") -> Record | None:
    """The record that these bytes should have in this place; None if they need none there."""
    if job is None:
        if place != "dead_letter":
            return None
        return Record(raw_id(raw), State.DEAD, raw, queues[-1], error="not a job; the original reason was lost")
    is_retry = bool(job.retries or job.recoveries)
    state = {
        "scheduled": State.RETRYING if is_retry else State.SCHEDULED,
        "dead_letter": State.DEAD,
        "processing": State.RUNNING,
    }.get(place, State.PENDING)
    queue = place if place in queues else job.priority if job.priority in queues else queues[-1]
    created_ms = waiting_since_ms(raw) or 0
    unique_key = job.unique_key or ""
    return Record(job.id, state, raw, queue, slot, created_ms, error=job.error or "", unique_key=unique_key)
