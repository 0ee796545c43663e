"""Checks the counts of batches: against each other, against the members, and against the records of the members.

One read of a batch has all its counts, so their sum is exact. The members are read page by page while jobs end. So what
they show counts only if the batch was the same before and after, and every fault only if a second check finds it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from fileq.brokers.batches import BatchView, MemberPage
from fileq.brokers.protocol import FullBroker
from fileq.commands.admin.fsck.report import Problem
from fileq.core.batch import ENDINGS_OF_STATES, BatchState

MISCOUNTED, UNCOUNTED = "miscounted", "uncounted"  # kinds of problems
_STATES = ("waiting", "running", "completed", "dead", "cancelled", "deleted")


class BatchFault(Struct, frozen=True):
    """`members` have ended, or have no record, without being counted."""

    batch: str
    kind: str
    detail: str
    members: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        return Problem(self.kind, self.batch, self.detail)


class BatchCheck:
    """What the first check found; confirmed() is the second one."""

    def __init__(self, broker: FullBroker) -> None:
        self._broker = broker
        self._children: dict[str, list[str]] = {}
        self.batches = 0
        self.faults: list[BatchFault] = []
        views = list(self._all_views())
        for view in views:
            if view.parent:
                self._children.setdefault(view.parent, []).append(view.id)
        self.batches = len(views)
        for view in views:
            self.faults += self._faults_of(view)

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

    def _all_views(self) -> Iterator[BatchView]:
        cursor = ""
        while True:
            page = self._broker.batch_page(cursor)
            yield from page.batches
            if not (cursor := page.next_cursor):
                return

    def _faults_of(self, view: BatchView) -> list[BatchFault]:
        total = sum(getattr(view, state) for state in _STATES)
        if view.total != total:
            return [BatchFault(view.id, MISCOUNTED, f"its total is {view.total}, but its states add up to {total}")]
        if view.state is BatchState.FINISHED and not view.dead:
            return []
        unfinished = _all_ids(lambda cursor: self._broker.unfinished_members(view.id, cursor))
        dead = _all_ids(lambda cursor: self._broker.dead_members(view.id, cursor))
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
        for start in range(0, len(ids), 500):
            page = ids[start : start + 500]
            for id, record in zip(page, self._broker.records(page), strict=True):
                if record is None or record.state in ENDINGS_OF_STATES:
                    ended.append(id)
        return tuple(ended)


def _uncounted(batch: str, members: tuple[str, ...]) -> BatchFault:
    return BatchFault(batch, UNCOUNTED, str(len(members)), members)


def _all_ids(page_from: Callable[[str], MemberPage]) -> set[str]:
    """All ids of the pages. A page may have ids that an earlier one had."""
    ids: set[str] = set()
    cursor = ""
    while True:
        page = page_from(cursor)
        ids.update(page.ids)
        if not (cursor := page.next_cursor):
            return ids
