"""`fileq batch create --wait`: waits until a batch is finished, and shows on a terminal how far it is. Only reads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from fileq.brokers.batches import BatchView
from fileq.brokers.notifications import Subscription
from fileq.brokers.protocol import FullBroker
from fileq.client.batch_ending import RECHECK_S, wait_for_batch
from fileq.client.batch_status import BatchStatus
from fileq.commands.admin.batch_text import progress_line

_CLEAR = "\r\x1b[K"


class _Source:
    """A broker as the source of a wait."""

    def __init__(self, broker: FullBroker) -> None:
        self._broker = broker

    def batches(self, ids: Sequence[str]) -> list[BatchView | None]:
        return self._broker.batches_by_id(ids)

    def subscribe(self) -> Subscription:
        return self._broker.subscribe()


def shown_wait(broker: FullBroker, id: str, report: Callable[[str], None], *, redraw_s: float) -> BatchStatus:
    """The status of the finished batch. The line is drawn on stderr, so that stdout has only results."""
    is_drawn = sys.stderr.isatty()

    def draw(status: BatchStatus) -> None:
        import shutil  # it imports every compression there is

        sys.stderr.write(_CLEAR + progress_line(status, shutil.get_terminal_size().columns))
        sys.stderr.flush()

    def report_alone(text: str) -> None:
        if is_drawn:
            sys.stderr.write(_CLEAR)
        report(text)

    try:
        status = wait_for_batch(
            _Source(broker),
            id,
            report=report_alone,
            on_status=draw if is_drawn else lambda status: None,
            recheck_s=redraw_s if is_drawn else RECHECK_S,
        )
    finally:
        if is_drawn:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
    assert status is not None
    return status


def exit_code_of(status: BatchStatus) -> int:
    """0 if all jobs were completed, 3 if one is dead, 1 otherwise."""
    if status.dead:
        return 3
    return 0 if status.is_success else 1
