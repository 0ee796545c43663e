"""One walk through all lists and all records, a page at a time: what looks wrong at first sight. Judges nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record, Suspect, UnrecordedJob
from fileq.commands.admin.fsck.report import NAMED, Copies
from fileq.commands.admin.jobs import waiting_since_ms
from fileq.core.job import Job, State, decode_or_none, raw_id

CANDIDATES = 10_000  # of one kind that are kept to be looked at again; more come in another round
_AT_ONCE = 20  # lists searched by one call: each search may read a whole list
_OUR_ID = re.compile(rb'^\{"id":"([^"\\\x00-\x1f]+)","filepath":')
_MOST_BITS, _FEWEST_BITS = 1 << 27, 1 << 16


class Seen:
    """Which keys were seen, in bounded memory: none that was is taken for unseen; a few may be the other way round."""

    def __init__(self, expected: int) -> None:
        self._bits = min(_MOST_BITS, max(_FEWEST_BITS, 1 << (32 * expected).bit_length()))
        self._map = bytearray(self._bits // 8)

    def add(self, key: tuple[str, str]) -> bool:
        """Whether it was there already."""
        was_there = True
        for bit in self._places(key):
            mask = 1 << (bit & 7)
            was_there &= bool(self._map[bit >> 3] & mask)
            self._map[bit >> 3] |= mask
        return was_there

    def __contains__(self, key: tuple[str, str]) -> bool:
        return all(self._map[bit >> 3] & 1 << (bit & 7) for bit in self._places(key))

    def _places(self, key: tuple[str, str]) -> Iterable[int]:
        drawn = hash(key) & 0xFFFF_FFFF_FFFF_FFFF
        first, step = drawn & 0xFFFF_FFFF, drawn >> 32 | 1
        return ((first + i * step) % self._bits for i in range(4))


class Walk:
    """What one walk saw. `unclaimed` counts elements in queues that a claim would adopt."""

    def __init__(self, broker: FullBroker, queues: Sequence[str], *, expected: int) -> None:
        self._broker = broker
        self._queues = tuple(queues)
        self._maybe_twice: set[str] = set()
        self._seen = Seen(expected)
        self.elements = self.records = self.slots = 0
        self.undecodable = 0
        self.unclaimed = 0
        self.unrecorded = 0  # of these the ones that have no record at all
        self.strays: dict[tuple[str, str], UnrecordedJob] = {}  # by place and id
        self.copies: dict[str, int] = {}
        self.lost: dict[str, Record] = {}
        self.silent: dict[str, Suspect] = {}
        self.unknown_queues: set[str] = set()  # of jobs that have not ended

    def everything(self) -> None:
        self.queues()
        self._scheduled_and_dead()
        self._slots()
        self._all_records()

    # lists

    def queues(self) -> None:
        """Every element that waits: is it accounted for?"""
        for queue in self._queues:
            for page in self._broker.pages(queue):
                self._queue_page(queue, page)
        if self._maybe_twice:
            self._count_several()

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
                self._stray(queue, raw, job)
            elif not record.queued:
                self.unclaimed += 1
                self.copies[id] = self.copies.get(id, 0) + 1

    def _count_several(self) -> None:
        """The bitmap has an inkling of which ids lie there more than once; now these are counted."""
        for id, (count, queued) in self._counted(self._maybe_twice).items():
            if count > 1 and count > queued:
                self.copies[id] = count
                self.unclaimed += count - queued if queued else 0  # else each of them was counted already

    def _counted(self, ids: Iterable[str]) -> dict[str, tuple[int, int]]:
        """How often each of these lies in the queues, and how many of them are accounted for."""
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
        """A second look: what was claimed while the first went by is no copy."""
        now = self._counted(self.copies)
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
                        self._stray(place, raw, job)

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
                    self._stray("processing", raw, job, slot)

    def _stray(self, place: str, raw: bytes, job: Job | None, slot: str = "") -> None:
        record = record_for(place, raw, job, self._queues, slot)
        if record is not None and len(self.strays) < CANDIDATES:
            self.strays[place, record.id] = UnrecordedJob(place, record)

    # records

    def _all_records(self) -> None:
        for page in self._broker.ids():
            self.records += len(page)
            found = [record for record in self._broker.records(page) if record is not None]
            alive = (record for record in found if record.state not in (State.COMPLETED, State.CANCELLED, State.DEAD))
            self.unknown_queues.update(record.queue for record in alive if record.queue not in self._queues)
            # What the lists showed is there; the others may have come or moved meanwhile.
            searched = [
                record
                for record in found
                if (record.state is State.PENDING and ("queue", record.id) not in self._seen)
                or (record.state is State.DEAD and ("dead_letter", record.id) not in self._seen)
            ]
            cheap = [r for r in found if r.state in (State.RUNNING, State.SCHEDULED, State.RETRYING)]
            self._keep_astray(cheap, 500)
            self._keep_astray(searched, _AT_ONCE)

    def _keep_astray(self, records: Sequence[Record], at_once: int) -> None:
        for start in range(0, len(records), at_once):
            some = records[start : start + at_once]
            for record, is_astray in zip(some, self._broker.lost([r.id for r in some]), strict=True):
                if is_astray and len(self.lost) < CANDIDATES:
                    self.lost[record.id] = record

    def copies_found(self) -> tuple[Copies, ...]:
        return tuple(Copies(id, count) for id, count in sorted(self.copies.items())[:NAMED])


def readable_id(raw: bytes) -> str | None:
    """The id under which a claim of these bytes would look for a record, be they a job or not."""
    match = _OUR_ID.match(raw)
    if match is not None:
        return match[1].decode(errors="replace")
    try:
        told = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    id = told.get("id") if isinstance(told, dict) else None
    return id if isinstance(id, str) and id else None


def record_for(place: str, raw: bytes, job: Job | None, queues: Sequence[str], slot: str = "") -> Record | None:
    """The record that an element at this place should have; None for bytes that need none there."""
    if job is None:
        if place != "dead_letter":
            return None
        return Record(raw_id(raw), State.DEAD, raw, queues[-1], error="not a job; the reason was lost")
    is_retry = bool(job.retries or job.recoveries)
    state = {
        "scheduled": State.RETRYING if is_retry else State.SCHEDULED,
        "dead_letter": State.DEAD,
        "processing": State.RUNNING,
    }.get(place, State.PENDING)
    queue = place if place in queues else job.priority if job.priority in queues else queues[-1]
    created_ms = waiting_since_ms(raw) or 0
    return Record(job.id, state, raw, queue, slot, created_ms, error=job.error or "")
