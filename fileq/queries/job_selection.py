"""Reads the jobs that a filter chooses from the places of a broker: all of them, or by pages. Changes nothing.

While other processes move jobs, a job may be missed or found twice. The cost of a page depends on its limit and on how
rare the wanted jobs are, never on how many jobs wait. Most conditions follow from the bytes of a job. For the others
only outlines of records are read, and records only for the jobs of the page.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.place_pages import PROCESSING
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.core.errors import ConfigError
from fileq.core.job import DELAYED_STATES, State, decode_or_none, raw_id
from fileq.core.paging import pages
from fileq.queries.job_filter import Conditions, JobFilter, StoredJob

# The places that are not queues, and the state of the jobs in them.
PLACES = {"scheduled": State.SCHEDULED, "dead_letter": State.DEAD}
ALL = Conditions(JobFilter())
PLACES |= {"completed": State.COMPLETED, "cancelled": State.CANCELLED}
SCAN_MAX = 10_000  # elements that one call looks at
OUTLINE_COST = 5  # an element whose outline is read counts as this many
SHORT_LIST_COST = 3  # the same in a list that is short enough to be read as a whole, to count its jobs
STATE_COST = 2  # an element of which only the state is read counts as this many
BYTES_MAX = 32 << 20  # of the jobs of one page, or one job
_PAGE = 500
ALL_STATES = (State.RUNNING, State.PENDING, *DELAYED_STATES, State.DEAD, State.COMPLETED, State.CANCELLED)
_PLACE_OF = {state: place for place, state in PLACES.items()}
_PLACE_OF |= {State.RUNNING: PROCESSING, **dict.fromkeys(DELAYED_STATES, "scheduled")}


def select(
    broker: FullBroker, queues: Sequence[str], wanted: JobFilter, states: Sequence[State] = ()
) -> Iterator[StoredJob]:
    """The jobs that meet the conditions, at most `limit`: waiting ones in order, ended ones newest first. `states` are
    those that are read if the filter names none. A page of a place is read when the caller has come so far."""
    chosen, conditions = _states(wanted, states), Conditions(wanted)
    places = places_of(chosen, [queue for queue in queues if wanted.queue in (None, queue)])
    size = min(_PAGE, wanted.limit or _PAGE)
    found = (
        job
        for place in places
        for page in pages(partial(broker.page, place, size=size))
        for job in matching(broker, page.raws, place, conditions)
        if job.state in chosen
    )
    return itertools.islice(found, wanted.limit)


def raws_in(broker: FullBroker, place: str, size: int = 500) -> Iterator[Sequence[bytes]]:
    """All jobs of a place, page by page. The cost of those that slots hold does not depend on `size`."""
    if place == PROCESSING:
        return iter([[view.raw for view in broker.workers() if view.raw]])
    return broker.pages(place, size)


def matching(broker: FullBroker, raws: Sequence[bytes], place: str, conditions: Conditions = ALL) -> list[StoredJob]:
    """The jobs among these bytes of a place that meet the conditions, with their records."""
    return complete_records(broker, outlined(broker, raws, place, conditions).jobs)


class Outlined(NamedTuple):
    """Jobs that meet the conditions, and of how many jobs the outline or the state was read to know it."""

    jobs: list[StoredJob]
    outlines: int
    states: int


def outlined(
    broker: FullBroker,
    raws: Sequence[bytes],
    place: str,
    conditions: Conditions,
    *,
    is_state_needed: bool = False,
    is_outline_needed: bool = False,
) -> Outlined:
    """The jobs among these bytes that meet the conditions. Those whose bytes tell it have no record, the others have an
    outline of it. `is_state_needed`: the jobs of `scheduled` must be told apart, which takes their states."""
    state, queue = _standing(place)
    found: list[StoredJob | None] = []
    undecided: list[int] = []
    stateless: list[int] = []
    for raw in raws:
        job = decode_or_none(raw)
        verdict = True if conditions.is_open else conditions.meets_without_record(job, state)
        if verdict is False:
            continue
        if verdict is None or is_outline_needed:
            undecided.append(len(found))
        elif is_state_needed and state is State.SCHEDULED:
            stateless.append(len(found))
        found.append(StoredJob(raw, job.id if job is not None else raw_id(raw), job, None, state, queue))
    for i, stored in zip(undecided, with_outlines(broker, [one for i in undecided if (one := found[i])]), strict=True):
        found[i] = stored if conditions.meets(stored) else None
    delayed = [one for i in stateless if (one := found[i])]
    recorded = broker.states([one.id for one in delayed]) if delayed else []
    for i, one, told in zip(stateless, delayed, recorded, strict=True):
        found[i] = _in_state(one, told)
    return Outlined([stored for stored in found if stored is not None], len(undecided), len(stateless))


def complete_records(broker: FullBroker, jobs: Sequence[StoredJob]) -> list[StoredJob]:
    """The same jobs with their whole records."""
    return _joined(jobs, broker.records)


def with_outlines(broker: FullBroker, jobs: Sequence[StoredJob]) -> list[StoredJob]:
    """The same jobs with outlines of their records. One round trip."""
    return _joined(jobs, broker.outlines)


def _joined(jobs: Sequence[StoredJob], read: Callable[[Sequence[str]], Sequence[Record | None]]) -> list[StoredJob]:
    records = read([stored.id for stored in jobs]) if jobs else ()
    joined = (replace(stored, record=record) for stored, record in zip(jobs, records, strict=True))
    return [_in_state(stored, stored.record.state) if stored.record is not None else stored for stored in joined]


def _in_state(stored: StoredJob, recorded: State | None) -> StoredJob:
    """The place says the state, except that `scheduled` holds retrying and deferred jobs too."""
    is_told = stored.state is State.SCHEDULED and recorded in DELAYED_STATES
    return replace(stored, state=recorded) if is_told else stored


def _standing(place: str) -> tuple[State, str]:
    """The state of the jobs in a place, and the queue that it is, or ""."""
    if place == PROCESSING:
        return State.RUNNING, ""
    return PLACES.get(place, State.PENDING), "" if place in PLACES else place


class JobPage(Struct, frozen=True):
    """Jobs of a list. `next_cursor` is "" at its end. `is_partial`: the scan ended before the list did and before the
    page was full, or its jobs have more than BYTES_MAX, so the next page may have more. `total` is None if it is not
    known. `matched` counts what was found, skipped jobs and those behind the page included. `paused` are the queues
    that are paused, `pending` how many jobs wait in each queue."""

    jobs: tuple[StoredJob, ...]
    next_cursor: str
    scanned: int
    is_partial: bool
    total: int | None
    matched: int = 0
    paused: frozenset[str] = frozenset()
    pending: Mapping[str, int] = {}


class _Position(Struct, frozen=True, array_like=True):
    place: str
    cursor: str = ""


_decoder = msgspec.json.Decoder(_Position)


def job_page(
    broker: FullBroker,
    queues: Sequence[str],
    wanted: JobFilter,
    *,
    states: Sequence[State] = (),
    cursor: str = "",
    limit: int = 50,
    skip: int = 0,
    scan_max: int = SCAN_MAX,
    is_counted: bool = False,
    has_records: bool = True,
) -> JobPage:
    """The next jobs of a list after a cursor: running, waiting, delayed, dead, completed, cancelled ones.

    `states` are those that are read if the filter names none. `skip` leaves out the first jobs. A scan costs `scan_max`
    at most: 1 for each element, or more if only the job's record can answer a condition: STATE_COST for its state, and
    for its outline OUTLINE_COST or, if the places hold `scan_max` elements at most, SHORT_LIST_COST. In such a short
    list the scan of the first page goes on behind a full page, to count the jobs; without conditions the lengths of the
    places say it. With `is_counted` it goes on in any list, and each element costs 1. Without `has_records` the jobs
    may have no record, or an outline of it. ConfigError for a cursor of another list."""
    scan = _Scan(broker, queues, wanted, _states(wanted, states), limit, skip, scan_max)
    length = scan.length_of_places()
    is_short = is_counted or length <= scan_max
    outline_cost = 1 if is_counted else SHORT_LIST_COST if is_short else OUTLINE_COST
    scan.run(cursor, is_counted=is_short and not cursor, outline_cost=outline_cost)
    total: int | None = None
    if scan.is_plain:
        total = length
    elif not cursor and scan.is_complete:
        total = scan.matched
    is_partial = scan.is_cut or (not scan.is_complete and scan.matched < skip + limit)
    jobs = tuple(complete_records(broker, scan.found) if has_records else scan.found)
    scanned = scan.scanned if wanted.only is None else scan.matched  # how many jobs others have is not for this caller
    return JobPage(jobs, scan.next_cursor, scanned, is_partial, total, scan.matched, scan.paused, scan.pending)


def _states(wanted: JobFilter, states: Sequence[State]) -> tuple[State, ...]:
    return (wanted.state,) if wanted.state is not None else tuple(states) or ALL_STATES


class _Scan:
    def __init__(
        self,
        broker: FullBroker,
        queues: Sequence[str],
        wanted: JobFilter,
        states: tuple[State, ...],
        limit: int,
        skip: int,
        scan_max: int,
    ) -> None:
        self._broker = broker
        self._conditions = Conditions(wanted)
        self._states = states
        self._places = places_of(self._states, [q for q in queues if wanted.queue in (None, q)])
        self._end = skip + limit  # the number of matching jobs after which the page is full
        self._skip = skip
        self._scan_max = scan_max
        self._size = min(max(1, limit), _PAGE)  # of the next page; it grows while few jobs meet the conditions
        self._is_part_of_a_place = 0 < sum(state in DELAYED_STATES for state in states) < len(DELAYED_STATES)
        self.is_plain = not wanted.has_conditions and not self._is_part_of_a_place
        self.found: list[StoredJob] = []
        self.matched = self.scanned = self._cost = self._bytes = 0
        self.is_cut = False  # the page is full because of its bytes
        self.next_cursor = ""
        self.is_complete = False  # the end of the last place was reached
        self.paused = frozenset[str]()
        self.pending: Mapping[str, int] = {}

    def run(self, cursor: str, *, is_counted: bool, outline_cost: int) -> None:
        position: _Position | None = self._start(cursor)
        while position is not None and self._cost < self._scan_max:
            is_full = self.matched >= self._end
            if is_full and not (is_counted and not self.is_plain):
                break
            position = self._read(position, outline_cost)
        self.is_complete = position is None
        self._set_next(position)

    def _read(self, position: _Position, outline_cost: int) -> _Position | None:
        """Reads one page of a place. Returns where the next one begins."""
        before = self.matched
        page = self._broker.page(position.place, position.cursor, self._size_of_next(position.place))
        self.scanned += len(page.raws)
        jobs, outlines, states = outlined(
            self._broker, page.raws, position.place, self._conditions, is_state_needed=self._is_part_of_a_place
        )
        self._cost += len(page.raws) + outlines * (outline_cost - 1) + states * (min(STATE_COST, outline_cost) - 1)
        jobs = [job for job in jobs if job.state in self._states] if self._is_part_of_a_place else jobs
        self.matched += len(jobs)
        left = self._take(jobs, before)
        following = self._after(position.place, page.next_cursor)
        if self.is_cut and left == 0:
            self._set_next(position)
        if before < self._end <= self.matched and len(jobs) > left and not self.next_cursor:
            # The page is full, and jobs of this page of the broker are left over: the next one begins among them.
            seen = _index_after(page.raws, jobs[:left])
            cursor = self._broker.page(position.place, position.cursor, seen).next_cursor
            self._set_next(self._after(position.place, cursor))
        elif before < self._end <= self.matched:
            self._set_next(following)
        return following

    def _set_next(self, position: _Position | None) -> None:
        if position is not None and not self.next_cursor:
            self.next_cursor = msgspec.json.encode(position).decode()

    def _take(self, jobs: Sequence[StoredJob], before: int) -> int:
        """Adds those that belong to the page. Returns how many of these jobs lead up to its end."""
        left = max(0, self._end - before)
        for at in range(max(0, self._skip - before), min(left, len(jobs))):
            self._bytes += len(jobs[at].raw)
            if self.found and self._bytes > BYTES_MAX:
                self.is_cut = True
                self._end = before + at
                return at
            self.found.append(jobs[at])
        return left

    def _size_of_next(self, place: str) -> int:
        left = self._scan_max - self._cost
        if self.is_plain:  # every job is wanted: a page of just these needs no second look
            return min(self._end - self.matched, _PAGE)
        if place == PROCESSING:  # a broker looks at all slots for a page of any size
            return left
        size, self._size = min(self._size, left), min(2 * self._size, _PAGE)
        return size

    def _after(self, place: str, cursor: str) -> _Position | None:
        if cursor:
            return _Position(place, cursor)
        following = self._places[self._places.index(place) + 1 :]
        return _Position(following[0]) if following else None

    def _start(self, cursor: str) -> _Position | None:
        if not cursor:
            return _Position(self._places[0]) if self._places else None
        try:
            position = _decoder.decode(cursor)
        except msgspec.DecodeError:
            position = _Position("")
        if position.place not in self._places:
            raise ConfigError(f"cursor {cursor!r} does not belong to this list; begin without one")
        return position

    def length_of_places(self) -> int:
        census = self._broker.census()
        self.paused, self.pending = census.paused, census.pending
        lengths = {PROCESSING: census.running, "scheduled": census.scheduled, "dead_letter": census.dead}
        lengths |= {"completed": census.completed, "cancelled": census.cancelled}
        return sum(lengths[place] if place in lengths else census.pending.get(place, 0) for place in self._places)


def places_of(states: Sequence[State], queues: Sequence[str]) -> list[str]:
    places: list[str] = []
    for state in states:
        places += queues if state is State.PENDING else [_PLACE_OF[state]]
    return list(dict.fromkeys(places))


def _index_after(raws: Sequence[bytes], jobs: Sequence[StoredJob]) -> int:
    """How many of the bytes lead up to the last of these jobs, which are among them in the same order."""
    at = 0
    for job in jobs:
        at = raws.index(job.raw, at) + 1
    return at
