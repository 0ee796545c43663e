"""Which job is claimed next, and how soon: queues, starvation, pushes by other programs. The installed program."""

from __future__ import annotations

import json
import time

import pytest

from fileq.core.job import State
from tests.support.servers import Server
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, ids, on_files

# So long that neither a heartbeat nor a timeout can be what starts a job.
LONG_WAIT_S = 20
PATIENT = {"heartbeat_ttl": f"{3 * LONG_WAIT_S}s", "brpoplpush_timeout": f"{LONG_WAIT_S}s"}


def test_high_jobs_are_claimed_first_then_low_ones_in_their_order(each_setup: WorkerSetup) -> None:
    low = each_setup.enqueue("note", *ids("low", 100))
    high = each_setup.enqueue("note", *ids("high", 10), queue="high")
    each_setup.worker(count=1)
    assert each_setup.wait_logged("note", 110) == [*high, *low]


def test_low_jobs_are_claimed_though_the_high_queue_is_never_empty(each_setup: WorkerSetup) -> None:
    low = each_setup.enqueue("note", *ids("low", 5))
    each_setup.enqueue("note", *ids("high", 200), queue="high")
    each_setup.worker(count=1, starvation_share=0.05)
    claimed = each_setup.wait_logged("note", 205)
    assert [id for id in claimed if id in low] == low
    assert [claimed.index(id) for id in low] == [19, 39, 59, 79, 99], "every twentieth claim prefers the low queue"


def test_with_no_starvation_share_low_jobs_wait_for_all_high_ones(setup: WorkerSetup) -> None:
    low = setup.enqueue("note", *ids("low", 5))
    high = setup.enqueue("note", *ids("high", 50), queue="high")
    setup.worker(count=1, starvation_share=0)
    assert setup.wait_logged("note", 55) == [*high, *low]


@pytest.mark.parametrize("count", [1, 4])
def test_low_jobs_pushed_by_another_program_start_before_any_timeout(
    setup: WorkerSetup, valkey: Server, count: int
) -> None:
    """The high queue stays empty. A worker that waited for it would wait twenty seconds."""
    (setup.inbox / "file").write_bytes(b"abc")
    setup.worker(count=count, handlers=on_files("on_file"), **PATIENT)
    client = valkey.client()
    wait_until(lambda: client.exists("jobqueue:watch:high,low"), 10, "it watches both queues")
    for n in range(10):  # one by one, each with an idle worker
        pushed_s = time.monotonic()
        client.lpush("jobqueue:low_priority", foreign_job(setup, f"single-{n}"))
        setup.wait_logged("file", n + 1)
        assert time.monotonic() - pushed_s < LONG_WAIT_S / 4
    many = ids("many", 1000)
    client.lpush("jobqueue:low_priority", *(foreign_job(setup, id) for id in many))
    claimed = setup.wait_logged("file", 1010, LONG_WAIT_S)[10:]
    assert (claimed if count == 1 else sorted(claimed, key=many.index)) == many
    setup.wait_for(State.COMPLETED, many)
    census = setup.census()
    assert (census.counters["adopted"], census.counters["completed"], census.drift) == (1010, 1010, 0)


def foreign_job(setup: WorkerSetup, id: str) -> bytes:
    """The eight fields of the contract, and none of the others."""
    fields = {
        "id": id,
        "filepath": str(setup.inbox / "file"),
        "filesize": 3,
        "priority": "low",
        "retries": 0,
        "creation_time": "2026-11-16T00:00:00Z",
        "trace_id": "",
        "span_id": "",
    }
    return json.dumps(fields).encode()
