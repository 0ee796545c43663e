"""Makes deferred jobs due before their time, page by page, in a loop of its own, so that a long list does not delay the
pump.

Most of them were deferred by this process, which knows when their reasons end. Others were deferred by a process that
has ended, or by the worker before a reload: nothing remembers them but their records. So this loop looks through
`scheduled` once when the worker starts, and after an operator has reset a breaker.

A limit of all workers is different: the job that ends may run here, and the jobs that wait for it may have been
deferred by another process, which does not notice the end. Then this loop looks at the jobs that are due next.

What a kill -9 leaves: the jobs in `scheduled`, each due within ten minutes. A release can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record
from fileq.core.job import State, decode_or_none
from fileq.worker.deferrals import IDLE_S, Deferrals

LOOKED_AT = 100  # how many jobs of `scheduled` one look reads, those that are due next
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.16  # between two looks; doubled after each look that found no job
CHECK_EVERY_S = 2.0  # how often to check whether jobs still wait for the limits that operators see


class DeferredRelease:
    """Owns no thread."""

    name = "deferred"

    def __init__(
        self, broker: FullBroker, deferrals: Deferrals, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._broker = broker
        self._deferrals = deferrals
        self._monotonic = monotonic
        self._search: Iterator[list[Record]] | None = None
        self._found: list[tuple[str, str]] = []
        self._look_pause_s = FIRST_PAUSE_S
        self._next_look_s = self._next_check_s = 0.0

    def turn(self) -> float:
        """Releases or searches one page. Returns the seconds until the next turn. A page stays listed until it is
        released."""
        self._deferrals.wake.clear()
        pause_s = self._deferrals.release_due()
        if page := self._deferrals.next_page():
            are_due = self._broker.due_now([id for id, _ in page])
            self._deferrals.drop_page(len(page))
            for (_, reason), is_due in zip(page, are_due, strict=True):
                if reason and not is_due:
                    self._deferrals.replace_released(reason)
            return 0.0
        if self._deferrals.take_search_request():
            self._search, self._found = retrying_jobs(self._broker), []
        if self._search_one_page():
            return 0.0
        self._check_shown()
        return min(IDLE_S, pause_s, self._look_elsewhere())

    def _search_one_page(self) -> bool:
        """False if there is nothing to search. What was found is released after the last page: to release it earlier
        would move the jobs that are still to be read."""
        if self._search is None:
            return False
        found = next(self._search, None)
        if found is not None:
            self._found += ((record.id, record.deferred) for record in found if record.deferred)
        else:
            self._deferrals.adopt(self._found)
            self._search, self._found = None, []
        return True

    def _look_elsewhere(self) -> float:
        """Releases jobs of other processes, as many as are wanted of each reason. Returns the seconds until the next
        look. What is not found is looked for a few times: its deferral may be under way."""
        if not self._deferrals.is_any_elsewhere:
            return IDLE_S
        now_s = self._monotonic()
        if now_s < self._next_look_s:
            return self._next_look_s - now_s
        wanted = self._deferrals.take_elsewhere()
        chosen = _first_of(wanted, self._broker)
        are_due = self._broker.due_now([record.id for record in chosen]) if chosen else []
        for record, is_due in zip(chosen, are_due, strict=True):
            wanted[record.deferred] -= is_due
        self._look_pause_s = FIRST_PAUSE_S if chosen else min(LONGEST_PAUSE_S, 2 * self._look_pause_s)
        self._next_look_s = now_s + self._look_pause_s
        if self._look_pause_s == LONGEST_PAUSE_S or not any(wanted.values()):
            return IDLE_S
        for reason, count in wanted.items():
            self._deferrals.release_elsewhere(reason, count)
        return self._look_pause_s

    def _check_shown(self) -> None:
        """Forgets the jobs of limits that do not wait any more, because another process has released them."""
        now_s = self._monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_EVERY_S
        for reason, ids in self._deferrals.to_check().items():
            records = self._broker.records(ids)
            still = {r.id for r in records if r is not None and r.state is State.RETRYING and r.deferred == reason}
            self._deferrals.forget(reason, (id for id in ids if id not in still))


def retrying_jobs(broker: FullBroker) -> Iterator[list[Record]]:
    """The records of all jobs that are retried or deferred, page by page. Only reads."""
    return (_retrying(broker, page) for page in broker.pages("scheduled"))


def _retrying(broker: FullBroker, raws: Sequence[bytes]) -> list[Record]:
    records = broker.records([job.id for job in map(decode_or_none, raws) if job is not None])
    return [record for record in records if record is not None and record.state is State.RETRYING]


def _first_of(wanted: Mapping[str, int], broker: FullBroker) -> list[Record]:
    """The jobs that are due next, at most as many as are wanted of each reason."""
    left, chosen = dict(wanted), []
    for record in _retrying(broker, broker.peek("scheduled", LOOKED_AT)):
        if left.get(record.deferred, 0) > 0:
            left[record.deferred] -= 1
            chosen.append(record)
    return chosen
