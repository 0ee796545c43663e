"""Why a claimed job may have to wait: the root of its file is missing, or a limit of its route is reached. And the jobs
that this process has deferred, by reason: when each is due again, and which are due when a reason ends. Breakers, which
defer jobs too, are in breakers.py.

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

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Admission, AdmitRequest, AdmitResult, Record
from fileq.config import Config
from fileq.core.errors import FileqError
from fileq.core.events import Emit, RootLost, RootRestored, ignore
from fileq.core.job import Claim, State, decode_or_none
from fileq.core.outcome import LostRoot
from fileq.core.settlement import Settlement
from fileq.core.webhook import DELIVERIES_MAX
from fileq.files.paths import MISSING, NOT_A_DIRECTORY, directory_problem
from fileq.handlers.routes import BoundRoute, Routes
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


# Limits of routes: which claimed job may run now, which must wait, and which runs when one ends.
#
# `max_running` is counted here. `max_running_total` and `rate` are shared by all workers, so the pump asks the broker
# about them. A refused job is deferred; its route's breaker does not count it. When a job of the route ends, the first
# job that was deferred for it is made due at once, so a limited route does not wait for the end of a deferral.


LIMITS = ("max_running", "max_running_total", "rate")
LIMITS_EVERY_S = 1.0  # whether jobs still wait for the limits that the registry shows


class Limits:
    """The limits of all routes, by the number of the route. A route without limits has no entry."""

    def __init__(self, routes: Routes, deferrals: Deferrals) -> None:
        self._deferrals = deferrals
        self._of = {n: route for n, route in enumerate(routes) if any(getattr(route, name) for name in LIMITS)}
        self.is_any = bool(self._of)  # without limits a job costs one look at this
        self.reached: tuple[str, ...] = ()  # what the registry shows
        self.change_count = 0  # grows with each change of `reached`
        self._next_check_s = 0.0

    def __contains__(self, route: int) -> bool:
        return route in self._of

    def refused_here(self, candidates: Iterable[int], running: Counter[int]) -> list[str | None]:
        """For each candidate, which is named by its route, why `max_running` refuses it, given how many jobs of each
        route run in this process."""
        answers: list[str | None] = []
        for number in candidates:
            route = self._of[number]
            if route.max_running is not None and running[number] >= route.max_running:
                answers.append(self._refuse(route, "max_running"))
            else:
                running[number] += 1
                answers.append(None)
        return answers

    def request(self, claim: Claim, number: int) -> AdmitRequest | None:
        """What the broker must be asked; None if the route shares no limit with other workers."""
        route = self._of[number]
        total, rate = route.max_running_total or 0, route.rate
        if not total and rate is None:
            return None
        rates = (rate.count, rate.window_ms) if rate is not None else ()
        return AdmitRequest(route.route_name, claim.slot, claim.raw, total, *rates)

    def refused_there(self, number: int, answer: Admission) -> tuple[str, float]:
        """Why the broker refuses a job of this route, and for how many seconds at least."""
        route, wait_s = self._of[number], answer.wait_ms / 1000
        if answer.result is AdmitResult.FULL:
            return self._refuse(route, "max_running_total"), wait_s
        assert route.rate is not None
        reason = self._refuse(route, "rate")
        self._deferrals.release_later(reason, wait_s, route.rate.count)
        return reason, wait_s

    def _refuse(self, route: BoundRoute, name: str) -> str:
        reason = _limit_reason(route, name)
        if reason not in self.reached:
            self._show((*self.reached, reason))
        return reason

    def ended(self, number: int) -> None:
        """A job of this route no longer runs here: the first job that was deferred for it is due now."""
        route = self._of.get(number)
        if route is None:
            return
        for name in ("max_running", "max_running_total"):
            if getattr(route, name) is not None and self._deferrals.release(_limit_reason(route, name), 1):
                return
        if route.max_running_total is not None:  # another worker may have deferred the job that can run now
            self._deferrals.release_elsewhere(_limit_reason(route, "max_running_total"), 1, route.max_running_total)

    def admitted(self, number: int, id: str) -> None:
        """This job runs, so it does not wait for a limit any more."""
        route = self._of.get(number)
        if route is not None and self.reached:
            for name in LIMITS:
                if getattr(route, name) is not None:
                    self._deferrals.forget(_limit_reason(route, name), (id,))

    def forget_unreached(self, now_s: float) -> None:
        """In each turn, with an effect once a second: a limit for which no job waits is no longer shown."""
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + LIMITS_EVERY_S
        still = tuple(reason for reason in self.reached if self._deferrals.is_any_waiting(reason))
        if still != self.reached:
            self._show(still)

    def _show(self, reached: tuple[str, ...]) -> None:
        self.reached = reached
        self.change_count += 1


def _limit_reason(route: BoundRoute, name: str) -> str:
    """Why a job of this route is deferred."""
    return f"the limit of {route.route_name} is reached ({name}: {getattr(route, name)})"


# Roots: the directories that jobs have their files in.
#
# The file jobs of a root that is missing, or that this user has no permission on, are deferred; jobs of other roots and
# jobs without a file run.
#
# A folder that files are moved to after their job is a root too: a retried job finds its file there. It may be missing
# for a good reason, because no file was moved yet. The same holds for the default root of a worker whose configuration
# names no directory: it may run only jobs without files. Such a root counts as missing only when a job needs it.
#
# Each root is checked in a thread of its own: a check of a dead network mount may block for minutes. turn() compares
# the results and reports what has changed; a loop of its own calls it. Between two checks a run may find its root
# missing: the pump reports that by note_lost(), and it counts until the next check. A new process checks at its start.


ROOTS_EVERY_S = 1.0
SILENT_AFTER_S = 10.0


class _Root:
    """The last check of one root. `is_needed`: its absence is a problem."""

    def __init__(self, path: bytes, look: Callable[[bytes], str], *, is_folder: bool, is_expected: bool) -> None:
        self.path = path
        self.is_needed = self._is_expected = is_expected
        self._is_folder = is_folder
        self._look = look
        self.check()

    def check(self) -> None:
        self._found = self._look(self.path)
        self.checked_s = time.monotonic()
        if not self._found:
            self.is_needed = self._is_expected  # if not, until a job misses it again

    def note_lost(self, found: str) -> None:
        self._found = found
        self.is_needed = True

    @property
    def is_missing(self) -> bool:
        return bool(self._found)

    def problem(self) -> str:
        """Why its files cannot be reached; "" if they can, or if no job needs them."""
        name = os.fsdecode(self.path)
        if not self.is_needed:
            return ""
        if time.monotonic() - self.checked_s > SILENT_AFTER_S:
            return f"the root {name} does not answer"
        if not self._found:
            return ""
        what = f"the folder {name}, where files were moved to," if self._is_folder else f"the root {name}"
        return f"{what} {'is missing (not mounted?)' if self._found in (MISSING, NOT_A_DIRECTORY) else self._found}"


class RootsWatch:
    """`folders` are those that files are moved to. `on_end` gets the reason for which jobs were deferred when a root is
    back. Unless roots `are_expected`, one is missing only when a job needs it."""

    name = "roots"

    def __init__(
        self,
        roots: Sequence[bytes],
        folders: Sequence[bytes] = (),
        *,
        emit: Emit = ignore,
        on_end: Callable[[str], None] = lambda reason: None,
        are_expected: bool = True,
        look: Callable[[bytes], str] = directory_problem,
    ) -> None:
        self._emit = emit
        self._on_end = on_end
        # The innermost root of a path comes first.
        kinds = {**dict.fromkeys(folders, True), **dict.fromkeys(roots, False)}
        by_length = sorted(kinds.items(), key=lambda kind: len(kind[0]), reverse=True)
        self._roots = [
            _Root(path, look, is_folder=is_folder, is_expected=are_expected and not is_folder)
            for path, is_folder in by_length
        ]
        self._unexpected = [root for root in self._roots if not root.is_needed]
        self._reported: Mapping[bytes, str] = {}
        self._reporting = threading.Lock()
        self._stop = threading.Event()
        self.problems: Mapping[bytes, str] = self._find_problems()  # root → why its files cannot be reached
        self.change_count = 0

    def start(self) -> None:
        for root in self._roots:
            threading.Thread(target=self._keep_checking, args=(root,), name="root", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def check(self) -> None:
        """Checks every root now. May block; the threads do it without being asked."""
        for root in self._roots:
            root.check()

    def turn(self) -> float:
        """Compares the last checks with those before. Returns the seconds until the next turn."""
        with self._reporting:
            before = self._reported
            self.problems = self._reported = after = self._find_problems()
            for root in (*before, *(root for root in after if root not in before)):
                if before.get(root) != after.get(root):
                    self._changed(root, before.get(root), after.get(root))
        return ROOTS_EVERY_S

    def note_lost(self, lost: LostRoot) -> str | None:
        """A run has found that this root cannot be accessed, and why. Returns the problem that its jobs wait for; None
        if a check has found the root again meanwhile. Reads no file: that may block."""
        for root in self._roots:
            if root.path == lost.root:
                root.note_lost(lost.reason)
        self.turn()  # reported before jobs are deferred for it: only what was reported ends, and releases them
        return self.problems.get(lost.root)

    @property
    def is_any_missing(self) -> bool:
        """Whether a file may have a problem: cheap, for every job."""
        return bool(self.problems) or any(root.is_missing for root in self._unexpected)

    def problem_of(self, path: bytes) -> str | None:
        """Why the file at this path cannot be reached now: its root is missing. None if nothing is known against it."""
        for root in self._roots:
            if path.startswith(root.path.rstrip(b"/") + b"/"):
                if root.is_missing and not root.is_needed:
                    root.is_needed = True
                    self.problems = self._find_problems()
                return self.problems.get(root.path)
        return None

    def problem(self) -> str:
        """All problems as one text; "" while all roots are there."""
        return "; ".join(self.problems.values())

    def _find_problems(self) -> dict[bytes, str]:
        return {root.path: problem for root in self._roots if (problem := root.problem())}

    def _changed(self, root: bytes, before: str | None, after: str | None) -> None:
        self.change_count += 1
        if after is not None:
            self._emit(RootLost(os.fsdecode(root), after, "its file jobs are deferred; all others run"))
        else:
            self._emit(RootRestored(os.fsdecode(root)))
        if before is not None:
            self._on_end(before)

    def _keep_checking(self, root: _Root) -> None:
        while not self._stop.wait(ROOTS_EVERY_S):
            root.check()
