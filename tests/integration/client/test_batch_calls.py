"""Batches and schedules of a client, on a broker itself and through a server: the same tests for both."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fileq
from fileq.brokers.memory import MemoryBroker
from fileq.client.client import Client
from fileq.core.batch import CallbackKind, facts_of
from fileq.core.errors import BatchError, BrokerError, ConfigError
from fileq.core.schedule import decode_document
from tests.support.client_setup import TRANSPORTS, client_over, job_of, living_broker, run_one
from tests.support.trial_tasks import Number, double


@pytest.fixture
def broker() -> MemoryBroker:
    return living_broker()


@pytest.fixture(params=TRANSPORTS)
def client(broker: MemoryBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    with client_over(request.param, broker, tmp_path) as client:
        yield client


def test_a_batch_counts_its_jobs_and_enqueues_its_callbacks(client: Client, broker: MemoryBroker) -> None:
    then = fileq.Call("report", {"to": "ops"}, priority="high", tags={"a": "b"})
    with client.batch("nightly", then=then, catch="alarm", priority="high") as batch:
        first = batch.add(double, Number(1))
        batch.add("elsewhere", [2])
        assert job_of(broker, first.id).priority == "high"
    status = batch.status()
    assert (status.status, status.name, status.total, status.waiting) == ("sealed", "nightly", 2, 2)
    assert batch.seal() is False
    with pytest.raises(BatchError, match="no longer accepts jobs, or does not exist; 1 of 1 jobs were not enqueued"):
        batch.add(double, Number(3))
    run_one(broker)
    run_one(broker, result=b"[4]")
    done = batch.wait(30)
    assert (done.is_success, done.completed, done.created_at is not None) == (True, 2, True)
    job = job_of(broker, f"{batch.id}.then")
    assert job.payload_value == {"to": "ops"}
    assert facts_of(job) == fileq.BatchFacts(batch.id, CallbackKind.THEN, 2, 2, 0, 0, 0)
    assert (job.priority, job.tag_values) == ("high", {"a": "b"})
    assert client.find_batch(batch.id).priority == "high"


def test_a_death_cancels_a_batch_and_a_retry_puts_it_back(client: Client, broker: MemoryBroker) -> None:
    batch = client.batch(catch=fileq.Call("alarm", {"to": "ops"}))
    dying = batch.add(double, Number(1))
    batch.add(double, Number(2))
    assert batch.seal() is True
    run_one(broker, error="OSError: no")
    job = job_of(broker, f"{batch.id}.catch")
    assert job.payload_value == {"to": "ops"}
    assert facts_of(job) == fileq.BatchFacts(batch.id, CallbackKind.CATCH, 2, 0, 1, 0, 0, dying.id, "OSError: no")
    status = batch.status()
    assert (status.is_cancelled, status.first_dead, status.first_error) == (True, dying.id, "OSError: no")
    assert [(job.id, job.error) for job in status.failures] == [(dying.id, "OSError: no")]
    assert [(one.kind, one.status, one.type) for one in status.callbacks] == [("catch", "pending", "alarm")]
    assert [(job.id, job.error) for job in batch.jobs(dead=True)] == [(dying.id, "OSError: no")]
    assert batch.retry().count == 1
    assert dying.status().status == "pending"
    assert batch.cancel() is True
    assert batch.cancel() is False
    with pytest.raises(ValueError, match="of the block"), client.batch() as broken:
        raise ValueError("of the block")
    assert broken.status().is_cancelled


def test_a_wait_for_a_batch_ends_with_it_and_unknown_batches_are_errors(client: Client, broker: MemoryBroker) -> None:
    with client.batch() as batch:
        batch.add(double, Number(1))
    with pytest.raises(TimeoutError, match="is not finished within 10ms"):
        batch.wait(0.01)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(batch.wait, 60)
        run_one(broker)
        assert waiting.result(60).is_success
    for call in (lambda: client.find_batch("no-such"), lambda: client.batch(parent="no-such")):
        with pytest.raises((BatchError, BrokerError), match="no-such"):
            call()
    with pytest.raises(ConfigError, match="priority is 'urgent'; it must be one of high, low"):
        client.batch(priority="urgent")
    child = client.batch(parent=client.batch("outer"))
    assert (child.status().parent or "").startswith("outer-")


def test_a_program_defines_schedules(client: Client, broker: MemoryBroker, tmp_path: Path) -> None:
    for timezone in ("UTC", "Asia/Tokyo", "Asia/Tokyo"):
        client.schedule("nightly", "30 2 * * *", "report", {"days": 7}, timezone=timezone, within="5m", timeout=60)
    definition = decode_document(broker.documents("schedules")["nightly"].body).definition
    assert (definition.timezone, definition.payload, definition.within_s) == ("Asia/Tokyo", {"days": 7}, 300.0)
    assert definition.timeout_s == 60.0
    with pytest.raises(ConfigError, match="cron"):
        client.schedule("nightly", "30 2 * *", "report")
    with pytest.raises(ConfigError, match="priority"):
        client.schedule("other", "@daily", "report", priority="urgent")
