"""Makes deferred jobs due before their time, page by page, in a loop of its own, so that a long list does not delay the
pump.

Most of them were deferred by this process, which knows when their reasons end. Others were deferred by a process that
has ended, or by the worker before a reload: nothing remembers them but their records. So this loop looks through
`scheduled` once when the worker starts, and after an operator has reset a breaker.

What a kill -9 leaves: the jobs in `scheduled`, each due within ten minutes. A release can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

from fileq.brokers.protocol import FullBroker
from fileq.core.job import State, decode_or_none
from fileq.worker.deferrals import IDLE_S, Deferrals


class DeferredRelease:
    """Owns no thread."""

    name = "deferred"

    def __init__(self, broker: FullBroker, deferrals: Deferrals) -> None:
        self._broker = broker
        self._deferrals = deferrals
        self._search: Iterator[list[tuple[str, str]]] | None = None
        self._found: list[tuple[str, str]] = []

    def turn(self) -> float:
        """Releases or searches one page. Returns the seconds until the next turn. A page stays listed until it is
        released."""
        self._deferrals.wake.clear()
        pause_s = self._deferrals.release_due()
        if page := self._deferrals.next_page():
            self._broker.due_now(page)
            self._deferrals.drop_page(len(page))
            return 0.0
        if self._deferrals.take_search_request():
            self._search, self._found = self._deferred_jobs(), []
        return 0.0 if self._search_one_page() else min(IDLE_S, pause_s)

    def _search_one_page(self) -> bool:
        """False if there is nothing to search. What was found is released after the last page: to release it earlier
        would move the jobs that are still to be read."""
        if self._search is None:
            return False
        found = next(self._search, None)
        if found is not None:
            self._found += found
        else:
            self._deferrals.adopt(self._found)
            self._search, self._found = None, []
        return True

    def _deferred_jobs(self) -> Iterator[list[tuple[str, str]]]:
        for page in self._broker.pages("scheduled"):
            records = self._broker.records([job.id for job in map(decode_or_none, page) if job is not None])
            yield [(r.id, r.deferred) for r in records if r is not None and r.state is State.RETRYING and r.deferred]
