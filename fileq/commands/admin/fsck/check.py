"""Two looks, the verdict, and on request the repair and a third look at what it left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census, Record, Suspect, UnrecordedJob
from fileq.commands.admin.fsck import walk as walks
from fileq.commands.admin.fsck.balance import Measured, agreed, measure, measured
from fileq.commands.admin.fsck.ledger import Forsaken, forsaken
from fileq.commands.admin.fsck.repair import Mending
from fileq.commands.admin.fsck.report import NAMED, Problem, Repair, Report, law_of
from fileq.commands.admin.fsck.walk import Walk
from fileq.config import Config
from fileq.core.errors import ConfigError
from fileq.core.job import State, decode_or_none

PAUSE_S = 1.0  # between two looks at a job
_AT_ONCE = 20  # searches of a whole list in one call

Sleep = Callable[[float], None]
T = TypeVar("T")


class Found:
    """What was wrong at two looks."""

    def __init__(self, walk: Walk, first: Measured) -> None:
        self.walk = walk
        self.first = first
        self.second = first
        self.excess = 0
        self.lost: dict[str, Record] = {}
        self.strays: list[UnrecordedJob] = []  # outside queues
        self.queue_strays: list[UnrecordedJob] = []
        self.silent: list[Suspect] = []
        self.forsaken: list[Forsaken] = []

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left out that could explain what is missing."""
        has_all_strays = len(self.walk.strays) < walks.CANDIDATES or self.excess <= 0
        return len(self.walk.lost) < walks.CANDIDATES and has_all_strays

    def problems(self) -> list[Problem]:
        problems = [
            Problem("unheld" if record.state is State.RUNNING else "lost", id, record.state.value, path_in(record.raw))
            for id, record in self.lost.items()
        ]
        # In a queue an element without a record is a stranger's, unless the books say that one of ours lost its own.
        ours = self.queue_strays if self.excess > 0 else []
        problems += [Problem("unrecorded", s.record.id, s.place, path_in(s.record.raw)) for s in (*self.strays, *ours)]
        for suspect in self.silent:
            problems += [Problem("silent", claim.id, suspect.slot, path_in(claim.raw)) for claim in suspect.claims]
        problems += [
            Problem("forsaken", one.id, "", one.path.decode(errors="backslashreplace")) for one in self.forsaken
        ]
        return problems


def path_in(raw: bytes) -> str:
    job = decode_or_none(raw)
    return job.filepath if job is not None else ""


def fsck(
    broker: FullBroker,
    config: Config,
    *,
    is_repairing: bool = False,
    sleep: Sleep = time.sleep,
    here: Callable[[bytes], bytes] = lambda path: path,
) -> Report:
    """The report: as it is, or with `is_repairing` as it is after the repair. `here` says where a producer's path is on
    this machine."""
    found = look_twice(broker, config, sleep)
    if not is_repairing:
        return _report(found)
    mending = Mending(broker, config, here)
    done = -1
    while len(mending.repairs) > done:
        done = len(mending.repairs)
        mending.mend(found.silent, list(found.lost.values()), found.strays, found.queue_strays, found.excess)
        if found.is_complete:
            # Not before: a counter must not make up for jobs that can still be put back.
            mending.enqueue(found.forsaken)
            if found.excess or mending.repairs:
                mending.balance(lambda: measure(broker, config.worker.priorities, sleep))
        if len(mending.repairs) > done:
            found = look_twice(broker, config, sleep)
    return _report(found, mending.repairs, is_repair=True)


def look_twice(broker: FullBroker, config: Config, sleep: Sleep) -> Found:
    queues = config.worker.priorities
    before = broker.census(sweep=True)
    walk = Walk(broker, queues, expected=_size_of(before))
    walk.everything()
    if walk.unknown_queues:
        # Nobody can count what lies in lists he does not know.
        names = ", ".join(sorted(map(repr, walk.unknown_queues)))
        raise ConfigError(f"there are jobs of the queue {names}, which is not in worker.priorities; add it to look")
    found = Found(walk, measured(before, broker.census(sweep=True), walk))
    is_doubtful = not found.first.is_exact or bool(found.first.excess)
    if is_doubtful or walk.lost or walk.strays or walk.silent or walk.copies:
        sleep(max(PAUSE_S, config.worker.heartbeat_ttl / 2) if walk.silent else PAUSE_S)
        if is_doubtful:
            _measure_again(broker, queues, found, sleep)
        _look_again(broker, config, found)
        unexplained = found.excess - len(found.lost) - len(found.queue_strays)
        if found.is_complete:
            found.forsaken = forsaken(broker, config, found.second.census, unexplained)
    return found


def _measure_again(broker: FullBroker, queues: Sequence[str], found: Found, sleep: Sleep) -> None:
    """What two looks agree on; a first that gave only bounds is replaced by a third."""
    found.second = measure(broker, queues, sleep)
    earlier = found.first
    if found.second.excess and found.second.is_exact and not earlier.is_exact:
        sleep(PAUSE_S)
        earlier, found.second = found.second, measure(broker, queues, sleep)
    found.excess = agreed(earlier, found.second)


def _look_again(broker: FullBroker, config: Config, found: Found) -> None:
    walk = found.walk
    found.lost = {id: walk.lost[id] for id, is_astray in _asked(broker.lost, list(walk.lost)) if is_astray}
    if walk.copies:
        walk.confirm_copies()
    elsewhere = [stray for stray in walk.strays.values() if stray.place not in config.worker.priorities]
    found.strays = [stray for stray, is_stray in _asked(broker.unrecorded, elsewhere) if is_stray]
    if found.excess > 0:
        in_queues = [stray for stray in walk.strays.values() if stray.place in config.worker.priorities]
        found.queue_strays = [stray for stray, is_stray in _asked(broker.unrecorded, in_queues) if is_stray]
    if walk.silent:
        still = {suspect.slot: suspect for suspect in broker.suspects(sweep=True)}
        found.silent = [still[slot] for slot in walk.silent if slot in still]


def _asked(look: Callable[[Sequence[T]], list[bool]], things: Sequence[T]) -> list[tuple[T, bool]]:
    answers: list[tuple[T, bool]] = []
    for start in range(0, len(things), _AT_ONCE):
        some = things[start : start + _AT_ONCE]
        answers += zip(some, look(some), strict=True)
    return answers


def _size_of(census: Census) -> int:
    return sum(census.pending.values()) + census.scheduled + census.dead


def _report(found: Found, repairs: Sequence[Repair] = (), *, is_repair: bool = False) -> Report:
    problems = found.problems()
    law = law_of(found.second.census, found.second.unclaimed, found.excess, is_exact=found.second.is_exact)
    return Report(
        is_clean=not problems and not found.excess,
        law=law,
        problems=tuple(problems[:NAMED]),
        problem_count=len(problems),
        duplicates=found.walk.copies_found(),
        undecodable=found.walk.undecodable,
        elements=found.walk.elements,
        records=found.walk.records,
        slots=found.walk.slots,
        repairs=tuple(repairs),
        is_repair=is_repair,
    )
