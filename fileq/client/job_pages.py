"""Lists of jobs by pages: a bounded scan over the places of a broker. Changes nothing.

The cost depends on the limit and on how rare the wanted jobs are, never on how many jobs wait. While other processes
move jobs, a job may be missed or returned twice, as brokers/place_pages.py says.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from fileq.brokers.place_pages import PROCESSING
from fileq.brokers.protocol import FullBroker
from fileq.client.job_filter import Conditions, JobFilter, StoredJob
from fileq.client.job_selection import matching
from fileq.core.errors import ConfigError
from fileq.core.job import State

SCAN_MAX = 10_000  # elements that one call looks at
_PAGE = 500
_DELAYED = (State.RETRYING, State.SCHEDULED)
_ALL = (State.RUNNING, State.PENDING, *_DELAYED, State.DEAD, State.COMPLETED, State.CANCELLED)
_PLACE_OF = {
    State.RUNNING: PROCESSING,
    State.RETRYING: "scheduled",
    State.SCHEDULED: "scheduled",
    State.DEAD: "dead_letter",
    State.COMPLETED: "completed",
    State.CANCELLED: "cancelled",
}


class JobPage(Struct, frozen=True):
    """Jobs of a list. `next_cursor` is "" at its end. `is_partial`: the scan ended before the list did and before the
    page was full, so the next page may have more. `total` is None if it is not known."""

    jobs: tuple[StoredJob, ...]
    next_cursor: str
    scanned: int
    is_partial: bool
    total: int | None


class _Position(Struct, frozen=True, array_like=True):
    place: str
    cursor: str = ""


_decoder = msgspec.json.Decoder(_Position)


def job_page(
    broker: FullBroker,
    queues: Sequence[str],
    wanted: JobFilter,
    *,
    cursor: str = "",
    limit: int = 50,
    scan_max: int = SCAN_MAX,
    is_counted: bool = False,
) -> JobPage:
    """The next jobs of a list after a cursor: running, waiting, delayed, dead, completed, cancelled ones.

    `is_counted` goes on behind a full page, within `scan_max`, to find out how many jobs there are. Without conditions
    the lengths of the places say it. ConfigError for a cursor that belongs to another list."""
    scan = _Scan(broker, queues, wanted, limit, scan_max)
    scan.run(cursor, is_counted)
    total: int | None = None
    if scan.is_plain:
        total = scan.length_of_places()
    elif not cursor and scan.is_complete:
        total = scan.matched
    is_partial = not scan.is_complete and scan.matched < limit
    return JobPage(tuple(scan.found), scan.next_cursor, scan.scanned, is_partial, total)


class _Scan:
    def __init__(self, broker: FullBroker, queues: Sequence[str], wanted: JobFilter, limit: int, scan_max: int) -> None:
        self._broker = broker
        self._conditions = Conditions(wanted)
        self._states = (wanted.state,) if wanted.state is not None else _ALL
        self._places = _places_of(self._states, [q for q in queues if wanted.queue in (None, q)])
        self._limit = limit
        self._scan_max = scan_max
        self._size = min(max(1, limit), _PAGE)  # of the next page; it grows while few jobs meet the conditions
        is_half_a_place = wanted.state in _DELAYED
        self.is_plain = not wanted.has_conditions and not wanted.is_deferred and not is_half_a_place
        self.found: list[StoredJob] = []
        self.matched = self.scanned = 0
        self.next_cursor = ""
        self.is_complete = False  # the end of the last place was reached

    def run(self, cursor: str, is_counted: bool) -> None:
        position: _Position | None = self._start(cursor)
        while position is not None and self.scanned < self._scan_max:
            is_full = self.matched >= self._limit
            if is_full and not (is_counted and not self.is_plain):
                break
            position = self._read(position)
        self.is_complete = position is None
        if position is not None and not self.next_cursor:
            self.next_cursor = msgspec.json.encode(position).decode()

    def _read(self, position: _Position) -> _Position | None:
        """Reads one page of a place. Returns where the next one begins."""
        left = self._limit - len(self.found)
        # Without conditions every job is wanted: a page of just these needs no second look.
        size = left if self.is_plain else min(self._size, self._scan_max - self.scanned)
        self._size = min(2 * self._size, _PAGE)
        page = self._broker.page(position.place, position.cursor, size)
        self.scanned += len(page.raws)
        matching_jobs = [
            job for job in matching(self._broker, page.raws, position.place, self._conditions) if self._is_wanted(job)
        ]
        self.matched += len(matching_jobs)
        self.found += matching_jobs[:left]
        following = self._after(position.place, page.next_cursor)
        if len(self.found) == self._limit and not self.next_cursor:
            self._set_next(position, page.raws, matching_jobs, left, following)
        return following

    def _set_next(
        self,
        position: _Position,
        raws: Sequence[bytes],
        jobs: Sequence[StoredJob],
        left: int,
        following: _Position | None,
    ) -> None:
        """The page is full. If jobs of this page of the broker are left over, the next one begins among them."""
        if len(jobs) > left:
            seen = _index_after(raws, jobs[:left])
            cursor = self._broker.page(position.place, position.cursor, seen).next_cursor
            following = self._after(position.place, cursor)
        if following is not None:
            self.next_cursor = msgspec.json.encode(following).decode()

    def _is_wanted(self, job: StoredJob) -> bool:
        return job.state in self._states

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
        lengths = {
            PROCESSING: census.running,
            "scheduled": census.scheduled,
            "dead_letter": census.dead,
            "completed": census.completed,
            "cancelled": census.cancelled,
        }
        return sum(lengths[place] if place in lengths else census.pending.get(place, 0) for place in self._places)


def _places_of(states: Sequence[State], queues: Sequence[str]) -> list[str]:
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
