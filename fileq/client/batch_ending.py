"""Waits until a batch is finished. Only reads: a caller that is killed leaves the batch as it is.

It subscribes before it reads, so that the end is not missed. An event can still get lost, so the batch is read again
every RECHECK_S and after each reconnection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from fileq.brokers.batches import BatchView
from fileq.brokers.notifications import Subscription
from fileq.client.batch_status import BatchStatus, status_of_batch
from fileq.client.job_endings import RETRY_S, SLICE_S
from fileq.client.published_events import PublishedBatchEvent, decode_event
from fileq.core.errors import BrokerUnavailable
from fileq.core.units import format_duration, two_units

RECHECK_S = 2.0


def wait_for_batch(
    read: Callable[[Sequence[str]], list[BatchView | None]],
    subscribe: Callable[[], Subscription],
    id: str,
    timeout_s: float | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    *,
    report: Callable[[str], None] = lambda text: None,
    on_status: Callable[[BatchStatus], None] = lambda status: None,
    recheck_s: float = RECHECK_S,
) -> BatchStatus | None:
    """The status of the finished batch; None once `is_stopped`. Raises TimeoutError, and BatchError for an unknown id.

    `on_status` gets the batch each time it is read, `report` the begin and the end of each outage."""
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    subscription, is_lost = subscribe(), False
    try:
        while not is_stopped():
            try:
                if is_lost:
                    subscription.close()
                    subscription, is_lost = subscribe(), False
                    report("connected again")
                [view] = read([id])
                status = status_of_batch(id, view)
                on_status(status)
                if status.is_finished:
                    return status
                _check_time(id, until_s, timeout_s)
                _wait_for_event(subscription, id, until_s, recheck_s, is_stopped)
            except BrokerUnavailable as error:
                if not is_lost:
                    report(f"{error}; trying again every {two_units(RETRY_S)}")
                is_lost = True
                _check_time(id, until_s, timeout_s)
                time.sleep(RETRY_S)
        return None
    finally:
        with suppress(BrokerUnavailable):
            subscription.close()


def _check_time(id: str, until_s: float | None, timeout_s: float | None) -> None:
    if until_s is not None and time.monotonic() >= until_s:
        limit = format_duration(timeout_s or 0)
        raise TimeoutError(f"batch {id} is not finished within {limit}; it goes on")


def _wait_for_event(
    subscription: Subscription, id: str, until_s: float | None, recheck_s: float, is_stopped: Callable[[], bool]
) -> None:
    """Until the batch is reported as finished, or it is time to read it again."""
    next_s = time.monotonic() + recheck_s
    next_s = next_s if until_s is None else min(next_s, until_s)
    while not is_stopped() and (left_s := next_s - time.monotonic()) > 0:
        raw = subscription.get(min(SLICE_S, left_s))
        if raw is None:
            continue
        event = decode_event(raw)
        if isinstance(event, PublishedBatchEvent) and event.batch_id == id:
            return
