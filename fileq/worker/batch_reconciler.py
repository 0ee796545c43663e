"""Repairs batches: counts members whose end no broker counted, and ends what is left of cancelled batches.

Each minute it looks at one page of the unfinished batches; the next turn continues with the next page.
- A sealed batch: members that have ended without being counted are counted. A broker that has lost a
  key leaves such members.
- A cancelled batch: its waiting members are cancelled. A member that a slot has claimed is cancelled by its worker.
- A batch whose parent is cancelled is cancelled too.
- An open batch that nothing was added to for 24 hours is cancelled: the program that opened it is gone.
A page with batches to cancel is followed by the next one at once: the call that cancels a batch leaves most of very
many child batches, and their jobs run until then.

The death of a member cancels its batch. What waits of it, perhaps for hours, must not keep it from finishing: so the
worker that settled the death cancels these members at once, and looks again a few times, because a member that ran may
have been put back meanwhile.

The look of each minute is done by one process, the holder of a lease. Each step is one call that may be repeated. What
a kill -9 leaves: the rest of a turn, which any other worker does.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from fileq.actions.bulk import BulkActions
from fileq.brokers.protocol import FullBroker
from fileq.brokers.schedule_definitions import broker_now_ms
from fileq.config import Config
from fileq.core.batch import LEVELS_MAX, UNTOUCHED_MS, Batch, BatchState
from fileq.core.events import BatchCancelled, BatchFinished, BatchReconciled, Emit, ignore
from fileq.worker.lease import Lease

EVERY_S = 60.0
BATCHES_A_TURN = 100
PAGES_A_TURN = 20  # pages of members that one turn reads, 500 each
DEAD_A_TURN = 500
DEAD_NOTED = 10_000  # the batches of more dead jobs than this are found by the check of each minute
FIRST_AGAIN_S = 1.0  # until a batch that failed is looked at again; doubled each time
UNTOUCHED = "nothing was added to it for 24 hours"
PARENT_CANCELLED = "its parent was cancelled"


class BatchReconciler:
    name = "batches"

    def __init__(
        self,
        config: Config,
        broker: FullBroker,
        *,
        emit: Emit = ignore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._monotonic = monotonic
        self._lease = Lease(broker, "batches", EVERY_S, monotonic=monotonic)
        self._dead: deque[str] = deque(maxlen=DEAD_NOTED)  # jobs that died in this process
        self._failed: set[str] = set()  # batches that a death has cancelled and that have not finished
        self._again_s = FIRST_AGAIN_S
        self._next_page_s = 0.0
        self.wake = threading.Event()
        self._actions = BulkActions(broker, config)
        self._emit = emit
        self._cursor = ""  # where the next page of batches begins
        self._member_cursors: dict[str, str] = {}  # by batch: where the next turn goes on
        self._pages_left = 0

    def note_dead(self, job_id: str) -> None:
        """A job has died. If that cancels its batch, the next turn, which is due at once, ends what waits of it."""
        self._dead.append(job_id)
        self.wake.set()

    def at_end(self) -> None:
        self._lease.give_back()

    def turn(self) -> float:
        """Ends what waits of batches that failed here, and each minute looks at one page of the unfinished batches.
        Returns the seconds until the next turn."""
        self.wake.clear()
        self._pages_left = PAGES_A_TURN
        is_early = bool(self._dead or self._failed) and self._monotonic() < self._next_page_s
        self._end_failed()
        if self._failed and not self._cursor:
            is_early = False  # child batches of those that failed are on the page
        if not is_early:
            was_any = bool(self._failed or self._lease.is_mine()) and self._check_page()
            self._next_page_s = self._monotonic() + (0.0 if was_any else EVERY_S * random.uniform(0.9, 1.1))
        if self._dead:
            return 0.0
        left_s = max(0.0, self._next_page_s - self._monotonic())
        return min(self._again_s, left_s) if self._failed else left_s

    def _end_failed(self) -> None:
        """Cancels the waiting members of batches that failed, and of their parents if these have failed by that."""
        ids = [self._dead.popleft() for _ in range(min(DEAD_A_TURN, len(self._dead)))]
        found = {one.batch for one in self._broker.outlines(ids) if one is not None} - {""} if ids else set()
        self._again_s = FIRST_AGAIN_S if found else min(EVERY_S, 2 * self._again_s)
        wanted, self._failed = found | self._failed, set()
        for _ in range(LEVELS_MAX):
            if not wanted:
                return
            views = [view for view in self._broker.batches_by_id(sorted(wanted)) if view is not None]
            for view in views:
                if view.is_cancelled and view.state is not BatchState.FINISHED:
                    self._failed.add(view.id)
                    self._reconcile(view)
            wanted = {view.parent for view in views} - {""}

    def _check_page(self) -> bool:
        """Returns whether a batch of the page was cancelled."""
        page = self._broker.batch_page(self._cursor, BATCHES_A_TURN, unfinished=True)
        views, was_any = self._cancel_abandoned(page.batches) if page.batches else ((), False)
        for view in views:
            self._reconcile(view)
        self._cursor = page.next_cursor
        seen = {view.id for view in page.batches} | self._failed
        self._member_cursors = {id: cursor for id, cursor in self._member_cursors.items() if cursor and id in seen}
        return was_any

    def _cancel_abandoned(self, views: Sequence[Batch]) -> tuple[Sequence[Batch], bool]:
        """Cancels open batches that no program adds to any more, and children of cancelled batches. Returns the batches
        as they are then, and whether one was cancelled."""
        was_any = False
        now_ms: int | None = None
        parents = {view.parent for view in views if view.parent and not view.is_cancelled}
        found = self._broker.batches_by_id(sorted(parents)) if parents else []
        cancelled_parents = {view.id for view in found if view is not None and view.is_cancelled}
        for view in views:
            if view.parent in cancelled_parents and not view.is_cancelled:
                if self._broker.cancel_batch(view.id):
                    was_any = True
                    self._emit(BatchCancelled(view.id, view.name or None, PARENT_CANCELLED))
            elif view.state is BatchState.OPEN:  # perhaps cancelled: a death cancels a batch without sealing it
                now_ms = broker_now_ms(self._broker) if now_ms is None else now_ms
                since_ms = now_ms - UNTOUCHED_MS
                if view.touched_ms < since_ms and self._broker.cancel_batch(view.id, untouched_since_ms=since_ms):
                    was_any = True
                    self._emit(BatchCancelled(view.id, view.name or None, UNTOUCHED))
        if not was_any:
            return views, False
        return [view for view in self._broker.batches_by_id([view.id for view in views]) if view is not None], True

    def _reconcile(self, view: Batch) -> None:
        if view.state is BatchState.OPEN and not view.is_cancelled:
            return
        counted, is_any_cancelled, cursor = 0, False, self._member_cursors.get(view.id, "")
        while self._pages_left > 0:
            self._pages_left -= 1
            page = self._broker.unfinished_members(view.id, cursor)
            if page.ids:
                counted += self._broker.count_members(view.id, page.ids)
                if view.is_cancelled:
                    is_any_cancelled |= self._actions.cancel_members(page.ids)
            cursor = page.next_cursor
            if not cursor:
                break
        self._member_cursors[view.id] = cursor
        if counted:
            self._emit(BatchReconciled(view.id, view.name or None, counted))
        if counted or is_any_cancelled:
            [now] = self._broker.batches_by_id([view.id])
            if now is not None and now.state is BatchState.FINISHED:
                self._emit(finished_event(view.id, now))


def finished_event(id: str, view: Batch | None) -> BatchFinished:
    if view is None:
        return BatchFinished(id, None)
    counts = view.total, view.completed, view.dead, view.cancelled, view.deleted
    return BatchFinished(view.id, view.name or None, *counts)
