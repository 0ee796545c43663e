"""Why a waiting job does not run: its queue is paused, no worker is alive, or no worker can claim it. Only reads."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record, WorkerView
from fileq.core.job import State
from fileq.core.text import printable

WAITING = (State.PENDING, State.SCHEDULED, State.RETRYING)


def obstacles_of(broker: FullBroker, records: Sequence[Record | None]) -> dict[str, tuple[str, ...]]:
    """By the id of the job; only for jobs that wait. The broker is asked once, and only if there is such a job."""
    waiting = [record for record in records if record is not None and record.state in WAITING]
    if not waiting:
        return {}
    overview = broker.overview(1)
    living = [view for view in overview.workers if view.is_alive]
    return {record.id: tuple(_obstacles(record, record.queue in overview.census.paused, living)) for record in waiting}


def paused_queue(name: str) -> str:
    """What a job in a paused queue waits for."""
    queue = printable(name)
    return f"queue {queue} is paused; 'fileq resume {queue}' resumes it"


def _obstacles(record: Record, is_paused: bool, living: Sequence[WorkerView]) -> list[str]:
    """Without a worker a job that is due later does not run either: workers also move due jobs into their queues."""
    queue = printable(record.queue)
    found = [paused_queue(record.queue)] if is_paused else []
    claiming = [view for view in living if record.queue in view.info.queues]
    if not living:
        found.append("no worker is running")
    elif not claiming:
        found.append(f"no running worker claims from queue {queue} (worker.priorities)")
    elif record.state is State.PENDING and not is_paused:
        if not any(view.info.is_claiming for view in claiming):
            found.append(f"the circuit breaker of every route is open{_next_try(claiming)}; 'fileq workers' shows why")
        else:
            slots = sum(not view.info.is_extra for view in claiming)
            if sum(bool(view.raw) for view in claiming) >= slots:
                jobs = "1 job" if slots == 1 else f"{slots:,} jobs"
                found.append(f"all slots are busy ({jobs} running)")
    return found


def _next_try(workers: Sequence[WorkerView]) -> str:
    """When the first of them claims a job again to try it; "" if one is being tried now."""
    times = [breaker.next_probe_ms for view in workers for breaker in view.info.breakers]
    if not times or not all(times):
        return ""
    return f", the next job is tried at {time.strftime('%H:%M:%S', time.gmtime(min(times) / 1000))} UTC"
