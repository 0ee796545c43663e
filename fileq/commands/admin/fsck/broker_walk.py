"""Walks through all lists, records, batches and the ledger, one page at a time, and collects candidates for problems.

Lists and records change during the walk, so a candidate proves nothing: check.py must confirm it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import msgspec
from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census, Record, Suspect, UnrecordedJob
from fileq.config import Config
from fileq.core.batch import ENDINGS_OF_STATES, Batch, BatchState
from fileq.core.job import DELAYED_STATES, Job, State, decode_or_none, raw_id
from fileq.core.paging import pages, parts
from fileq.queries.job_filter import waiting_since_ms
from fileq.queries.job_queries import read_signature

CANDIDATES = 10_000  # how many of one kind are kept; fsck --repair finds further ones in its next round
SEARCHES = 1000  # jobs in one call of the broker, which may read a whole list once
_OUR_ID = re.compile(rb'^\{"id":"([^"\\\x00-\x1f]+)","filepath":')
_MAX_BITS, _MIN_BITS = 1 << 27, 1 << 16
MEASUREMENTS = 3  # of the balance, on a busy system
PAUSE_S = 0.5  # between two of them


class BloomFilter:
    """A set of keys in at most 16 MiB: no false negatives, a few false positives, other ones in each filter."""

    def __init__(self, expected: int) -> None:
        # Without it, a key that one filter reports by mistake would be reported by every filter of this process.
        self._salt = os.urandom(8)
        self.bits = min(_MAX_BITS, max(_MIN_BITS, 1 << (32 * expected).bit_length()))
        self._map = bytearray(self.bits // 8)

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
        return ((first + i * step) % self.bits for i in range(4))


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
            if id is not None and self._seen.add(("queue", id)) and len(self._maybe_twice) < CANDIDATES:
                self._maybe_twice.add(id)
            if record is None:
                self.unclaimed += 1
                self.unrecorded += 1
                if id is not None:
                    self._add_unrecorded(queue, raw, job)
            elif not record.queued:
                self.unclaimed += 1
                self.copies[record.id] = self.copies.get(record.id, 0) + 1

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
        in_advance = {view.slot for view in workers if view.info.is_extra}  # beyond worker.count
        self.slots = len({*held, *(view.slot for view in workers)} - in_advance)
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
            places = {State.PENDING: "queue", State.DEAD: "dead_letter"}
            listed = [(record, places[record.state]) for record in found if record.state in places]
            waiting += [record for record, place in listed if (place, record.id) not in self._seen]
            self._keep_lost([record for record in found if record.state in (State.RUNNING, *DELAYED_STATES)])
            if len(waiting) >= SEARCHES:
                self._keep_lost(waiting)
                waiting = []
        self._keep_lost(waiting)

    def _keep_lost(self, records: Sequence[Record]) -> None:
        for record, is_lost in zip(records, self._broker.lost([r.id for r in records]), strict=True):
            if is_lost and len(self.lost) < CANDIDATES:
                self.lost[record.id] = record


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
    delayed = State.RETRYING if is_retry else State.SCHEDULED
    states = {"scheduled": delayed, "dead_letter": State.DEAD, "processing": State.RUNNING}
    state = states.get(place, State.PENDING)
    queue = place if place in queues else job.priority if job.priority in queues else queues[-1]
    created_ms = waiting_since_ms(raw) or 0
    unique_key = job.unique_key or ""
    return Record(job.id, state, raw, queue, slot, created_ms, error=job.error or "", unique_key=unique_key)


class Measurement(Struct, frozen=True):
    """How many jobs are certainly missing or surplus; the docstring of check.py explains it. The excess is between
    `at_least` and `at_most`; they are equal if the system was quiet."""

    at_least: int
    at_most: int
    census: Census
    unclaimed: int

    @property
    def is_exact(self) -> bool:
        return self.at_least == self.at_most

    @property
    def excess(self) -> int:
        """The certain part: 0 if the bounds allow 0."""
        return max(self.at_least, 0) or min(self.at_most, 0)


def is_quiet(before: Census, after: Census) -> bool:
    """Whether no job entered or left a queue between the two censuses."""
    one, other = ((at.pending, at.scheduled, dict(at.counters)) for at in (before, after))
    return one == other


def measurement_from(before: Census, after: Census, walk: BrokerWalk) -> Measurement:
    """From the censuses before and after a walk, and the unclaimed jobs that the walk found."""
    unclaimed = walk.unclaimed
    if is_quiet(before, after):
        exact = after.drift + unclaimed
        return Measurement(exact, exact, after, unclaimed)
    at_least = max(census.drift for census in (before, after))
    at_most = min(census.drift + sum(census.pending.values()) for census in (before, after))
    if not walk.unrecorded and before.drift == after.drift == 0:
        # No job of another program was found, and the sides are equal: jobs that looked like copies were just claimed.
        return Measurement(0, 0, after, 0)
    # The bounds cross only if the damage happens during the walk; then nothing is certain.
    if at_least > at_most:
        at_least, at_most = min(at_most, 0), max(at_least, 0)
    return Measurement(at_least, at_most, after, unclaimed)


def measure(broker: FullBroker, queues: Sequence[str], sleep: Callable[[float], None]) -> Measurement:
    """The tightest of several measurements: on a busy system each gives only bounds."""
    best: Measurement | None = None
    for i in range(MEASUREMENTS):
        if i:
            sleep(PAUSE_S)
        before = broker.census(sweep=True)
        walk = BrokerWalk(broker, queues, expected=sum(before.pending.values()))
        walk.queues()
        now = measurement_from(before, broker.census(sweep=True), walk)
        if now.is_exact:
            return now
        best = now if best is None else tighten(best, now)
    assert best is not None
    return best


def tighten(one: Measurement, other: Measurement) -> Measurement:
    """Combines the bounds of two measurements. Moving jobs do not change the excess, so both bound the same number."""
    at_least, at_most = max(one.at_least, other.at_least), min(one.at_most, other.at_most)
    if at_least > at_most:
        return other
    return Measurement(at_least, at_most, other.census, other.unclaimed)


def agreed_excess(first: Measurement, second: Measurement) -> int:
    """The excess that both measurements prove."""
    if first.excess > 0 and second.excess > 0:
        return min(first.excess, second.excess)
    if first.excess < 0 and second.excess < 0:
        return max(first.excess, second.excess)
    return 0


# Checks the counts of batches: against each other, against the members, and against the records of the members.
#
# One read of a batch has all its counts, so their sum is exact. The members are read page by page while jobs end. So
# what they show counts only if the batch was the same before and after, and every fault only if a second check finds
# it too.


MISCOUNTED, UNCOUNTED = "miscounted", "uncounted"  # kinds of problems
_STATES = ("waiting", "running", "completed", "dead", "cancelled", "deleted")


class BatchFault(Struct, frozen=True):
    """`members` have ended, or have no record, without being counted."""

    batch: str
    kind: str
    detail: str
    members: tuple[str, ...] = ()


class BatchCheck:
    """What the first check found; confirmed() is the second one."""

    def __init__(self, broker: FullBroker) -> None:
        self._broker = broker
        self._children: dict[str, list[str]] = {}
        views = [view for page in pages(self._broker.batch_page) for view in page.batches]
        self.batches = len(views)
        for view in views:
            self._children.setdefault(view.parent, []).append(view.id)
        self.faults = [fault for view in views for fault in self._faults_of(view)]

    def confirmed(self) -> list[BatchFault]:
        """The faults that are found again. Of uncounted members, those that both checks found."""
        again: dict[tuple[str, str], BatchFault] = {}
        for view in self._broker.batches_by_id(sorted({fault.batch for fault in self.faults})):
            if view is not None:
                again |= {(fault.batch, fault.kind): fault for fault in self._faults_of(view)}
        confirmed: list[BatchFault] = []
        for first in self.faults:
            second = again.get((first.batch, first.kind))
            if second is None:
                continue
            if first.kind == MISCOUNTED and first.detail == second.detail:
                confirmed.append(second)
            elif members := tuple(id for id in second.members if id in set(first.members)):
                confirmed.append(_uncounted(first.batch, members))
        return confirmed

    def _faults_of(self, view: Batch) -> list[BatchFault]:
        total = sum(getattr(view, state) for state in _STATES)
        if view.total != total:
            return [BatchFault(view.id, MISCOUNTED, f"its total is {view.total}, but its states add up to {total}")]
        if view.state is BatchState.FINISHED and not view.dead:
            return []
        # Sets: a page may have ids that an earlier one had.
        broker = self._broker
        unfinished = {id for page in pages(partial(broker.unfinished_members, view.id)) for id in page.ids}
        dead = {id for page in pages(partial(broker.dead_members, view.id)) for id in page.ids}
        ended = self._ended(sorted(unfinished))
        children = [child for child in self._broker.batches_by_id(self._children.get(view.id, [])) if child is not None]
        if self._broker.batches_by_id([view.id]) != [view]:
            return []  # members came or ended meanwhile
        uncounted_children = sum(not child.is_counted for child in children)
        faults = [_uncounted(view.id, ended)] if ended else []
        if (counted := view.waiting + view.running) != (found := len(unfinished) + uncounted_children):
            faults.append(BatchFault(view.id, MISCOUNTED, f"it counts {counted} unfinished members, but has {found}"))
        elif not len(dead) <= view.dead <= len(dead) + len(children):
            faults.append(BatchFault(view.id, MISCOUNTED, f"it counts {view.dead} dead members, but has {len(dead)}"))
        return faults

    def _ended(self, ids: Sequence[str]) -> tuple[str, ...]:
        """Those of the unfinished members that have ended or have no record."""
        ended: list[str] = []
        for page in parts(ids, _PAGE):
            for id, record in zip(page, self._broker.records(page), strict=True):
                if record is None or record.state in ENDINGS_OF_STATES:
                    ended.append(id)
        return tuple(ended)


def _uncounted(batch: str, members: tuple[str, ...]) -> BatchFault:
    return BatchFault(batch, UNCOUNTED, str(len(members)), members)


# Finds files whose job left no trace: the ledger knows the version, so no producer will enqueue it again, but there
# is no record and no list holds the job.
#
# The record of an ended job expires, so a missing record alone proves nothing. It is a proof if all of this is true:
# the balance says that jobs are missing; the version is younger than worker.history_ttl, so its record can't have
# expired; no list of ended jobs is full and nothing was deleted in that time, so its record can't have been removed
# with the oldest entries or by hand; and there are not more such files than missing jobs.


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
    recent = _recent_versions(broker, since_ms, census.now_ms)
    while page := list(islice(recent, _PAGE)):
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


def _recent_versions(broker: FullBroker, since_ms: int, now_ms: int) -> Iterator[LostFile]:
    for path, entry in broker.ledger(b""):
        for signature, id in entry.versions[:1]:
            _, modified_ns = read_signature(signature)
            # A modification time in the future says nothing about the age of the version.
            if modified_ns is not None and since_ms < modified_ns // 1_000_000 <= now_ms:
                yield LostFile(path, signature, id)
