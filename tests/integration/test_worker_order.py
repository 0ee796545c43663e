"""Which job comes next, and how soon: priorities, starvation, and pushes by other programs. The real program."""

from __future__ import annotations

import json
import time

import pytest

from fileq.core.job import State
from tests.support.servers import Server
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, ids, on_files

# Neither a heartbeat nor a timeout may be what gets a job started.
LONG_WAIT_S = 20
PATIENT = {"heartbeat_ttl": f"{3 * LONG_WAIT_S}s", "brpoplpush_timeout": f"{LONG_WAIT_S}s"}


def test_high_jobs_come_first_then_low_ones_in_their_order(each_setup: WorkerSetup) -> None:
    low = each_setup.enqueue("note", *ids("low", 100))
    high = each_setup.enqueue("note", *ids("high", 10), queue="high")
    each_setup.worker(count=1)
    assert each_setup.wait_logged("note", 110) == [*high, *low]


def test_low_jobs_move_though_high_ones_never_end(each_setup: WorkerSetup) -> None:
    low = each_setup.enqueue("note", *ids("low", 5))
    each_setup.enqueue("note", *ids("high", 200), queue="high")
    each_setup.worker(count=1, starvation_share=0.05)
    told = each_setup.wait_logged("note", 205)
    assert [id for id in told if id in low] == low
    assert [told.index(id) for id in low] == [19, 39, 59, 79, 99], "every twentieth claim starts from below"


def test_with_no_starvation_share_low_jobs_wait_for_all_high_ones(setup: WorkerSetup) -> None:
    low = setup.enqueue("note", *ids("low", 5))
    high = setup.enqueue("note", *ids("high", 50), queue="high")
    setup.worker(count=1, starvation_share=0)
    assert setup.wait_logged("note", 55) == [*high, *low]


@pytest.mark.parametrize("count", [1, 4])
def test_low_jobs_pushed_by_another_program_wait_for_no_timeout(setup: WorkerSetup, valkey: Server, count: int) -> None:
    """The high queue stays empty all the time, and an idle worker would wait twenty seconds for it."""
    (setup.inbox / "file").write_bytes(b"abc")
    setup.worker(count=count, handlers=on_files("on_file"), **PATIENT)
    client = valkey.client()
    wait_until(lambda: client.info("clients")["blocked_clients"] == 2, 10, "it waits at both queues")
    for n in range(10):  # one by one: each finds it idle
        pushed_s = time.monotonic()
        client.lpush("jobqueue:low_priority", foreign_job(setup, f"single-{n}"))
        setup.wait_logged("file", n + 1)
        assert time.monotonic() - pushed_s < LONG_WAIT_S / 4
        wait_until(lambda: client.info("clients")["blocked_clients"] == 2, 10, "it waits again")
    many = ids("many", 1000)
    client.lpush("jobqueue:low_priority", *(foreign_job(setup, id) for id in many))
    told = setup.wait_logged("file", 1010, LONG_WAIT_S)[10:]
    assert (told if count == 1 else sorted(told, key=many.index)) == many
    setup.wait_for(State.COMPLETED, many)
    census = setup.census()
    assert (census.counters["adopted"], census.counters["completed"], census.drift) == (1010, 1010, 0)


def foreign_job(setup: WorkerSetup, id: str) -> bytes:
    """The first eight fields, and nothing that is ours."""
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
