"""`fileq batch create --wait`: waits until a batch is finished, and shows on a terminal how far it is. Only reads."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fileq.brokers.protocol import FullBroker
from fileq.client.batch_handle import RECHECK_S, BatchStatus, wait_for_batch
from fileq.commands.admin.batch_text import progress_line

_CLEAR = "\r\x1b[K"


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
            broker.batches_by_id,
            broker.subscribe,
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
