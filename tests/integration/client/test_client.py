"""The client with the real program, on each kind of broker: lost replies, many callers at once, forks, long waits."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import fileq
from fileq.client.client import Client
from fileq.core.errors import BrokerUnavailable
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import Server
from tests.support.trial_tasks import Number, double, fail, hang, total
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup

TASKS = Path(__file__).parents[2] / "support" / "trial_tasks.py"


@pytest.fixture
def client(each_setup: WorkerSetup) -> Iterator[Client]:
    with Client(each_setup.config) as client:
        yield client


@pytest.fixture
def work(each_setup: WorkerSetup) -> Callable[..., object]:
    """Starts a worker with the tasks of trial_tasks.py."""
    (each_setup.directory / "app_tasks.py").write_text(TASKS.read_text())
    return lambda **settings: each_setup.worker(imports="app_tasks", count=2, **settings)


def test_a_job_runs_and_its_caller_gets_the_result_or_the_error(
    client: Client, work: Callable[..., object], each_setup: WorkerSetup
) -> None:
    with client.events("job:completed") as events:
        handle = client.enqueue(double, Number(21), tags={"tenant": "acme"})
        work()
        assert handle.wait(30) == Number(42)
        assert next(events).job_id == handle.id
    assert handle.status().attempt_count == 1
    with pytest.raises(fileq.JobFailed, match="OSError: broken") as failed:
        client.enqueue(fail, "broken", max_retries=1).wait(30)
    assert failed.value.attempts == 2
    each_setup.enqueue("double", "foreign", payload={"n": "three"})  # the payload is checked again when the job runs
    with pytest.raises(fileq.JobFailed, match="the payload is not what the task takes: Expected `int`") as failed:
        client.job("foreign").wait(30)
    assert failed.value.attempts == 1
    assert client.enqueue(total, [1, 2]).wait(30) == 3
    [listed] = client.jobs(type="double", status="completed")
    assert (listed.status, listed.result, listed.tags) == ("completed", {"n": 42}, {"tenant": "acme"})


def test_fifty_callers_of_one_unique_key_make_one_job(client: Client, each_setup: WorkerSetup) -> None:
    """Half of them share a client, the others have their own."""
    barrier = threading.Barrier(50)

    def call(number: int) -> tuple[str, object]:
        own = client if number % 2 else Client(each_setup.config)
        own.size("low")  # connected before they start together
        barrier.wait(60)
        handle = own.enqueue(double, Number(number), unique_key="report")
        if own is not client:
            own.close()
        return handle.id, handle.fate

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(call, range(50)))
    assert len({id for id, _ in answers}) == 1
    assert sorted(str(fate) for _, fate in answers) == ["duplicate"] * 49 + ["enqueued"]
    assert client.size("low") == 1


def test_a_unique_key_is_free_again_however_its_job_ended(
    client: Client, work: Callable[..., object], each_setup: WorkerSetup
) -> None:
    def taken() -> fileq.Handle[None]:
        handle = client.enqueue(fail, "dead", unique_key="key", max_retries=0)
        assert handle.fate == "enqueued"
        return handle

    assert taken().cancel() == "cancelled"
    work()
    completed = client.enqueue(double, Number(1), unique_key="key")
    assert completed.fate == "enqueued"
    completed.wait(30)
    dead = taken()
    with pytest.raises(fileq.JobFailed):
        dead.wait(30)
    deleted = taken()
    with pytest.raises(fileq.JobFailed):
        deleted.wait(30)
    [record] = each_setup.broker.records([deleted.id])
    assert record is not None
    each_setup.broker.discard([(deleted.id, record.raw)])
    running = client.enqueue(hang, unique_key="key")
    assert running.fate == "enqueued"
    wait_until(lambda: running.status().status == "running", 30, "it runs")
    assert client.enqueue(fail, "x", unique_key="key").id == running.id
    assert running.cancel() == "requested"
    with pytest.raises(fileq.JobCancelled):
        running.wait(60)
    assert taken().fate == "enqueued"


def test_a_forked_process_uses_connections_of_its_own(client: Client) -> None:
    client.enqueue(double, Number(0))
    child = os.fork()
    if child == 0:
        try:
            handles = client.enqueue_many(double.call(Number(n)) for n in range(20))
            os._exit(0 if len({handle.id for handle in handles}) == 20 else 1)
        except BaseException:
            os._exit(2)
    for n in range(20):
        client.enqueue(double, Number(n))
    assert os.waitpid(child, 0)[1] == 0
    assert client.size("low") == 41


def test_many_coroutines_that_wait_hold_up_no_other_call(client: Client, work: Callable[..., object]) -> None:
    async def use() -> list[Number]:
        shared = fileq.AsyncClient.of(client)
        handles = [await shared.enqueue(double, Number(n)) for n in range(40)]
        waits = [asyncio.create_task(handle.wait()) for handle in handles]
        given_up = asyncio.create_task((await shared.enqueue(hang, delay="1h")).wait())
        await asyncio.sleep(0)
        assert await shared.size("low") == 40, "it is answered while all of them wait"
        await asyncio.to_thread(work)
        found = await asyncio.gather(*waits)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        with pytest.raises(TimeoutError):
            await (await shared.enqueue(hang, delay="1h")).wait(0.01)
        return found

    assert asyncio.run(use()) == [Number(2 * n) for n in range(40)]
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "fileq wait"], 30, "its thread has ended")


# lost replies


def test_a_thousand_calls_whose_replies_are_lost_enqueue_a_thousand_jobs(valkey: Server) -> None:
    seen: set[bytes] = set()

    def is_first_try(request: bytes) -> bool:
        """Of every fourth job. The client sends it again, with the same id."""
        number = re.search(rb'\{"n":(\d+)\}', request)
        if number is None or int(number[1]) % 4 or number[1] in seen:
            return False
        seen.add(number[1])
        return True

    with FaultProxy(valkey.port) as proxy, closing(Client(f"redis://127.0.0.1:{proxy.port}")) as client:
        client.size("low")
        proxy.drop_reply_when(is_first_try, times=None)
        handles = [client.enqueue(double, Number(n)) for n in range(1000)]
        assert len(seen) == 250
        assert client.size("low") == 1000
    assert len({handle.id for handle in handles}) == 1000
    assert {handle.fate for handle in handles} == {"enqueued"}


def test_a_wait_survives_the_loss_of_its_connections(valkey: Server, setup: WorkerSetup) -> None:
    (setup.directory / "app_tasks.py").write_text(TASKS.read_text())
    with FaultProxy(valkey.port) as proxy, closing(Client(f"redis://127.0.0.1:{proxy.port}")) as client:
        handle = client.enqueue(double, Number(4))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(handle.wait, 60)
            # The record is read after the subscription.
            wait_until(lambda: any(b"SUBSCRIBE" in request for request in proxy.requests[:-1]), 30, "it waits")
            proxy.reset_all()
            setup.worker(imports="app_tasks")
            assert waiting.result(60) == Number(8)


def test_a_broker_that_cannot_be_reached_is_an_error_of_the_call_and_not_of_the_client(valkey: Server) -> None:
    with FaultProxy(valkey.port) as proxy:
        address = f"redis://127.0.0.1:{proxy.port}"
    client = Client(address)
    with pytest.raises(BrokerUnavailable):
        client.enqueue(double, Number(1))
    with pytest.raises(BrokerUnavailable):
        client.events()
