"""The jobs that this process has deferred, by reason: when each is due again, and which are due when a reason ends.

A deferred job comes back by itself at its due time. Jobs of one reason are due 10 ms apart, so a worker that still
cannot run them claims at most 100 of them a second. Deliveries of webhooks are due 100 ms apart: each one that ends
releases the next, so those that come back on their own are mostly claimed too early. More than 60,000 jobs (6,000
deliveries) do not fit into ten minutes; the others share the second half of that time. When the reason ends they are
due at once, page by page. The limit of a route is a reason that does not end: whenever it allows some jobs to run, that
many are released, the first ones first.

The pump adds jobs; turn(), in a loop of its own, makes them due, so that a long list does not delay the pump. Both
threads share the object.

Jobs that were deferred by a process that has ended, or by the worker before a reload, are known only by their records.
So turn() looks through `scheduled` once when the worker starts, and after an operator has reset a breaker. A limit of
all workers is different: the job that ends may run here, and those that wait for it may have been deferred by another
process, which does not notice the end. Then turn() looks at the jobs that are due next.

What a kill -9 leaves: the jobs in `scheduled`, each due within ten minutes. A release can be repeated.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.config import Config
from fileq.core.errors import FileqError
from fileq.core.job import Claim, State, decode_or_none
from fileq.core.settlement import Settlement
from fileq.core.webhook import DELIVERIES_MAX
from fileq.queries.untaken_jobs import UntakenJobs

SHORTEST_S = 1.0
LONGEST_S = 600.0
APART_S = 0.01
DELIVERIES_APART_S = 0.1
PAGE = 500
IDLE_S = 1.0
CHECKED = 100  # jobs of a reason whose records are read to see whether they still wait
LOOKED_AT = 100  # how many jobs of `scheduled` one look reads, those that are due next
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.16  # between two looks; doubled after each look that found no job
CHECK_EVERY_S = 2.0  # how often to check whether jobs still wait for the limits that operators see
LEFT_GROWTH, LEFT_MAX_S = 1.5, 3.0  # of the delay of a job that is left to another worker
LEFT_KEPT = 10_000  # such jobs whose delay is remembered
LEAVES_FOR_S = 2 * LEFT_MAX_S  # since the last of them
# These reasons never end for all their jobs together: each job waits for one other job, and is due every second.
EARLIER_JOB_RUNS = "an earlier job of this file is running"
LAST_RUN_GOES_ON = "the last job of its schedule has not ended"
# This one never ends either: each delivery that ends releases the next one.
DELIVERIES_RUN = f"{DELIVERIES_MAX} webhook deliveries are running in this worker"
_WAITING_FOR_A_JOB = (EARLIER_JOB_RUNS, LAST_RUN_GOES_ON)


class _Reason:
    """One reason that has not ended."""

    def __init__(self) -> None:
        self.deferred_until_s = 0.0  # when the last of its jobs is due
        self.last_until_s = 0.0  # the same for the jobs that come after the others
        self.due_s: dict[str, float] = {}  # job id → when it is due, about the earliest first
        self.is_reported = False
        self.under_way = 0  # jobs whose deferral was decided and not yet confirmed by the broker
        self.owed = 0  # how many of these to release as soon as the broker has deferred them


class Deferrals:
    """Owns no thread."""

    name = "deferred"

    def __init__(self, broker: FullBroker, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._reasons: dict[str, _Reason] = {}
        # Jobs to make due: the id and, if another job can take its place, the reason.
        self._released: deque[tuple[str, str]] = deque()
        self._elsewhere: dict[str, int] = {}  # reason → how many jobs of other processes to release
        self._shown: set[str] = set()  # the limits and breakers whose waiting jobs are to be checked
        self._later: dict[str, tuple[float, int]] = {}  # reason → when to release how many of its jobs
        self._is_search_requested = True  # for the jobs of processes that have ended
        self._search: Iterator[list[Record]] | None = None
        self._found: list[tuple[str, str]] = []
        self._look_pause_s = FIRST_PAUSE_S
        self._next_look_s = self._next_check_s = 0.0
        self.wake = threading.Event()

    def delay_ms(self, reason: str, wait_s: float, *, is_last: bool = False) -> int:
        """For how long to defer the next job of this reason, which lasts for `wait_s` at least. One that `is_last`
        does not delay the others, of which there may be more to come."""
        now_s = self._monotonic()
        with self._lock:
            state = self._reasons.setdefault(reason, _Reason())
            # Half of the longest delay leaves room behind it in which jobs can be due one after the other.
            earliest_s = now_s + max(SHORTEST_S, min(wait_s, LONGEST_S / 2))
            apart_s = DELIVERIES_APART_S if reason == DELIVERIES_RUN else APART_S
            due_s = max(earliest_s, (state.last_until_s if is_last else state.deferred_until_s) + apart_s)
            # More jobs than fit: start again in the middle. With the longest delay, all would come back together.
            due_s = due_s if due_s <= now_s + LONGEST_S else now_s + LONGEST_S / 2
            if is_last:
                state.last_until_s = due_s
            else:
                state.deferred_until_s = due_s
            state.under_way += 1
            return round((due_s - now_s) * 1000)

    def settled(self, settlement: Settlement) -> bool:
        """Notes a job that the broker has deferred. Returns whether to report it: the first of its reason, and each job
        that begins to wait for an earlier job.

        Not before the broker has answered: a job that is not deferred yet cannot be released."""
        id, now_s = settlement.claim.id, self._monotonic()
        with self._lock:
            state = self._reasons.get(settlement.reason)
            if state is None:  # the reason has ended meanwhile
                self._released.append((id, ""))
                self.wake.set()
                return False
            state.under_way -= state.under_way > 0
            was_waiting = state.due_s.pop(id, None) is not None
            if state.owed:
                state.owed -= 1
                self._released.append((id, settlement.reason))
                self.wake.set()
            else:
                state.due_s[id] = now_s + settlement.delay_ms / 1000
            self._forget_due(state, now_s)
            if settlement.reason in _WAITING_FOR_A_JOB:
                return not was_waiting
            is_first, state.is_reported = not state.is_reported, True
            return is_first

    def _forget_due(self, state: _Reason, now_s: float) -> None:
        """Bounds the list: a job whose time has come is back in its queue."""
        while state.due_s:
            id = next(iter(state.due_s))
            if state.due_s[id] > now_s - SHORTEST_S:
                return
            del state.due_s[id]

    def end(self, reason: str) -> None:
        """The jobs of this reason can run now: the loop releases them."""
        with self._lock:
            state = self._reasons.pop(reason, None)
            if state is not None:
                self._released.extend((id, "") for id in state.due_s)
        self.wake.set()

    def fenced(self, settlement: Settlement) -> None:
        """The broker has not deferred this job: its slot no longer held it."""
        with self._lock:
            if (state := self._reasons.get(settlement.reason)) is not None:
                state.under_way -= state.under_way > 0
                state.owed = min(state.owed, state.under_way)

    def release(self, reason: str, count: int) -> int:
        """The first `count` jobs of this reason, which goes on, can run now: the loop releases them. Returns how many.

        A job whose deferral is still under way counts as one of them: it is released once the broker has deferred it.
        """
        now_s = self._monotonic()
        with self._lock:
            state = self._reasons.get(reason)
            if state is None:
                return 0
            first: list[str] = []
            while state.due_s and len(first) < count:
                id = next(iter(state.due_s))
                if state.due_s.pop(id) > now_s:  # otherwise it is back in its queue
                    first.append(id)
            owed = min(count - len(first), state.under_way - state.owed)
            state.owed += owed
            if first:
                self._released.extend((id, reason) for id in first)
                self.wake.set()
            return len(first) + owed

    def release_elsewhere(self, reason: str, count: int, most: int = PAGE) -> None:
        """More jobs that other processes deferred for this reason can run now, `most` at a time: the loop looks for
        them."""
        with self._lock:
            if wanted := min(most, self._elsewhere.get(reason, 0) + count):
                self._elsewhere[reason] = wanted
        self.wake.set()

    def forget(self, reason: str, ids: Iterable[str]) -> None:
        """These jobs no longer wait for this reason."""
        with self._lock:
            if (state := self._reasons.get(reason)) is not None:
                for id in ids:
                    state.due_s.pop(id, None)

    def release_later(self, reason: str, after_s: float, count: int) -> None:
        """As release(), after this time. A release of this reason that is planned already stays as it is."""
        at_s = self._monotonic() + after_s
        with self._lock:
            if reason not in self._later:
                self._later[reason] = at_s, count
                self.wake.set()

    def count(self, reason: str) -> int:
        """About how many jobs wait for this reason: another process may have released some of them."""
        with self._lock:
            state = self._reasons.get(reason)
            if state is None:
                return 0
            self._shown.add(reason)
            self._forget_due(state, self._monotonic())
            return state.under_way + len(state.due_s)

    def is_any_waiting(self, reason: str) -> bool:
        """Whether a job of this reason waits for its time, or has just come back and may be deferred again."""
        since_s = self._monotonic() - SHORTEST_S
        with self._lock:
            state = self._reasons.get(reason)
            if state is None:
                return False
            self._shown.add(reason)
            return state.under_way > 0 or any(due > since_s for due in reversed(state.due_s.values()))

    def request_search(self) -> None:
        """Has the loop look for deferred jobs that no process remembers."""
        self._is_search_requested = True
        self.wake.set()

    # the loop

    def turn(self) -> float:
        """Releases or searches one page. Returns the seconds until the next turn. A page stays listed until it is
        released."""
        self.wake.clear()
        pause_s = self._release_due()
        with self._lock:
            page = list(islice(self._released, PAGE))
        if page:
            are_due = self._broker.due_now([id for id, _ in page])
            self._drop_page(len(page))
            for (_, reason), is_due in zip(page, are_due, strict=True):
                if reason and not is_due and not self.release(reason, 1):  # another one can run instead
                    self.release_elsewhere(reason, 1)
            return 0.0
        if self._is_search_requested:
            self._is_search_requested = False
            pages = self._broker.pages("scheduled")
            self._search = (in_states(self._broker, page, (State.DEFERRED,)) for page in pages)
            self._found = []
        if self._search_one_page():
            return 0.0
        self._check_shown()
        return min(IDLE_S, pause_s, self._look_elsewhere())

    def _drop_page(self, size: int) -> None:
        with self._lock:
            for _ in range(size):
                self._released.popleft()

    def _release_due(self) -> float:
        """Makes the releases whose time has come. Returns the seconds until the next one."""
        now_s = self._monotonic()
        with self._lock:
            for reason in [reason for reason, (at_s, _) in self._later.items() if at_s <= now_s]:
                self.release(reason, self._later.pop(reason)[1])
            return min((at_s - now_s for at_s, _ in self._later.values()), default=IDLE_S)

    def _search_one_page(self) -> bool:
        """False if there is nothing to search. What was found is released after the last page: to release it earlier
        would move the jobs that are still to be read."""
        if self._search is None:
            return False
        found = next(self._search, None)
        if found is not None:
            self._found += ((record.id, record.deferred) for record in found)
        else:
            with self._lock:  # those whose reason does not last in this process
                self._released.extend((id, "") for id, reason in self._found if reason not in self._reasons)
            self._search, self._found = None, []
        return True

    def _look_elsewhere(self) -> float:
        """Releases jobs of other processes, as many as are wanted of each reason. Returns the seconds until the next
        look. What is not found is looked for a few times: its deferral may be under way."""
        if not self._elsewhere:
            return IDLE_S
        now_s = self._monotonic()
        if now_s < self._next_look_s:
            return self._next_look_s - now_s
        with self._lock:
            wanted, self._elsewhere = self._elsewhere, {}
        chosen = _first_of(wanted, self._broker)
        are_due = self._broker.due_now([record.id for record in chosen]) if chosen else []
        for record, is_due in zip(chosen, are_due, strict=True):
            wanted[record.deferred] -= is_due
        self._look_pause_s = FIRST_PAUSE_S if chosen else min(LONGEST_PAUSE_S, 2 * self._look_pause_s)
        self._next_look_s = now_s + self._look_pause_s
        if self._look_pause_s == LONGEST_PAUSE_S or not any(wanted.values()):
            return IDLE_S
        for reason, count in wanted.items():
            self.release_elsewhere(reason, count)
        return self._look_pause_s

    def _check_shown(self) -> None:
        """Forgets the jobs of limits that do not wait any more, because another process has released them."""
        now_s = self._monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_EVERY_S
        with self._lock:  # those that are due last
            shown, self._shown = self._shown, set()
            due_s = {reason: self._reasons[reason].due_s for reason in shown if reason in self._reasons}
            waiting = {reason: list(islice(reversed(ids), CHECKED)) for reason, ids in due_s.items()}
        for reason, ids in waiting.items():
            records = self._broker.records(ids)
            still = {r.id for r in records if r is not None and r.state is State.DEFERRED and r.deferred == reason}
            self.forget(reason, (id for id in ids if id not in still))


def in_states(broker: FullBroker, raws: Sequence[bytes], states: Sequence[State]) -> list[Record]:
    """The records of those of these jobs of `scheduled` that are in these states."""
    records = broker.records([job.id for job in map(decode_or_none, raws) if job is not None])
    return [record for record in records if record is not None and record.state in states]


def _first_of(wanted: Mapping[str, int], broker: FullBroker) -> list[Record]:
    """The jobs that are due next, at most as many as are wanted of each reason."""
    left, chosen = dict(wanted), []
    for record in in_states(broker, broker.peek("scheduled", LOOKED_AT), (State.DEFERRED,)):
        if left.get(record.deferred, 0) > 0:
            left[record.deferred] -= 1
            chosen.append(record)
    return chosen


class LeftJobs:
    """The jobs that no route of this worker takes, or whose files are below none of its roots, while another running
    worker has both. Until `recent_until_s` one of them may come back."""

    def __init__(self, broker: FullBroker, config: Config, monotonic: Callable[[], float]) -> None:
        self._others = UntakenJobs(broker, config, monotonic=monotonic)
        self._monotonic = monotonic
        self._waits_s: dict[str, float] = {}  # job → how long it was deferred last
        self.recent_until_s = 0.0

    def deferral(self, claim: Claim, *, lacks_root: bool = False) -> tuple[str, float, bool] | None:
        """Why to defer this job, for how many seconds, and whether after the others of that reason; None if no other
        worker takes it. If that is not known, it is deferred. The delay grows each time the job comes back here: the
        other worker may be busy."""
        job = claim.job
        assert job is not None
        try:
            if (info := self._others.taker(job, claim.queue)) is None:
                return None
            what = f"handler for type {job.type!r}" if job.type is not None else "route for this file"
            what = "root for this file" if lacks_root else what
            reason = f"this worker has no {what}; worker {info.host}-{info.pid} has one"
        except FileqError:
            what = "root" if lacks_root else "handler"
            reason = f"this worker has no {what} for this job, and can't read which other worker has one"
        if len(self._waits_s) >= LEFT_KEPT:
            self._waits_s.clear()
        wait_s = min(LEFT_MAX_S, LEFT_GROWTH * self._waits_s.get(claim.id, SHORTEST_S / LEFT_GROWTH))
        self._waits_s[claim.id] = wait_s
        self.recent_until_s = self._monotonic() + LEAVES_FOR_S
        return reason, wait_s, wait_s > SHORTEST_S
