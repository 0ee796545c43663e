"""What a client does, on a broker itself and through a server: the same tests for both."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fileq
from fileq.brokers.memory import MemoryBroker
from fileq.client.client import Client
from fileq.core.errors import BrokerError, ConfigError, JobError
from tests.support.client_setup import TRANSPORTS, client_over, job_of, living_broker, run_one
from tests.support.sqlite_store import push_raw
from tests.support.trial_tasks import Number, double, fail


@pytest.fixture
def broker() -> MemoryBroker:
    return living_broker()


@pytest.fixture(params=TRANSPORTS)
def client(broker: MemoryBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    with client_over(request.param, broker, tmp_path) as client:
        yield client


def test_a_payload_is_checked_before_anything_is_enqueued(client: Client) -> None:
    with pytest.raises(ConfigError, match="task 'double' needs a payload of type Number"):
        client.enqueue(double)
    with pytest.raises(ConfigError, match=r"task 'double' takes a payload of type Number: Expected `int`, got `str`"):
        client.enqueue("double", {"n": "3"})
    with pytest.raises(ConfigError, match=r"is not JSON \(TypeError: "):
        client.enqueue("unheard-of", object())
    with pytest.raises(ConfigError, match="priority is 'urgent'; it must be one of high, low"):
        client.enqueue(double, Number(1), priority="urgent")
    assert client.size("low") == 0


def test_a_task_of_another_process_is_enqueued_by_its_name(client: Client, broker: MemoryBroker) -> None:
    job = job_of(broker, client.enqueue("elsewhere", {"a": [1]}, priority="high", max_retries=0, timeout="1s").id)
    assert (job.type, job.payload_value, job.priority, job.max_retries, job.timeout) == (
        "elsewhere",
        {"a": [1]},
        "high",
        0,
        1.0,
    )
    with pytest.raises(ConfigError, match="task is ''; give a task"):
        client.enqueue("")


def test_many_calls_are_all_checked_before_the_first_is_enqueued(client: Client) -> None:
    calls = [double.call(Number(1)), fileq.Call("double", 3), Path("/etc/passwd"), double.call(Number(2), delay="x")]
    with pytest.raises(ConfigError) as caught:
        client.enqueue_many(calls)
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError, match="leads outside the allowed roots"):
        client.enqueue_many([double.call(Number(1)), Path("/etc/passwd")])
    assert client.size("low") == 0


def test_many_calls_go_in_batches_of_500(client: Client, broker: MemoryBroker, monkeypatch: Any) -> None:
    sizes: list[int] = []
    enqueue = broker.enqueue
    monkeypatch.setattr(broker, "enqueue", lambda entries: (sizes.append(len(entries)), enqueue(entries))[1])
    handles = client.enqueue_many(double.call(Number(n)) for n in range(1001))
    assert sizes == [500, 500, 1]
    assert [job_of(broker, handle.id).payload_value for handle in handles[::500]] == [{"n": 0}, {"n": 500}, {"n": 1000}]
    assert client.enqueue_many([]) == []


def test_an_unfinished_job_with_the_same_key_is_returned_as_a_duplicate(client: Client) -> None:
    first = client.enqueue(double, Number(1), unique_key="report")
    second = client.enqueue(double, Number(2), unique_key="report")
    assert (second.id, second.fate, first.fate) == (first.id, "duplicate", "enqueued")
    chosen = client.enqueue(double, Number(1), id="mine")
    again = client.enqueue(double, Number(1), id="mine")
    assert (chosen.fate, again.fate, again.id) == ("enqueued", "duplicate", "mine")


def test_the_span_of_the_caller_travels_with_the_job(client: Client, broker: MemoryBroker, monkeypatch: Any) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert job_of(broker, client.enqueue(double, Number(1)).id).trace_id == ""
    assert "opentelemetry.trace" not in sys.modules
    span = SimpleNamespace(trace_id=0xABC, span_id=0xDEF, is_valid=True)
    current = SimpleNamespace(get_span_context=lambda: span)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", SimpleNamespace(get_current_span=lambda: current))
    job = job_of(broker, client.enqueue(double, Number(1)).id)
    assert (job.trace_id, job.span_id) == (f"{0xABC:032x}", f"{0xDEF:016x}")


def test_the_status_of_a_job_follows_it(client: Client, broker: MemoryBroker) -> None:
    handle = client.enqueue(double, Number(1), delay="1h")
    status = handle.status()
    assert (status.status, status.is_finished, status.attempt_count) == ("scheduled", False, 0)
    assert status.scheduled_at is not None
    due = datetime.fromisoformat(status.scheduled_at)
    assert timedelta(minutes=59) < due - datetime.now(UTC) < timedelta(minutes=61)
    broker.due_now([handle.id])
    run_one(broker, result=b'{"n":2}')
    status = handle.status()
    assert (status.status, status.is_finished, status.attempt_count, status.result) == ("completed", True, 1, {"n": 2})
    unknown = client.job("no-such").status()
    assert (unknown.status, unknown.is_finished) == ("unknown", True)


def test_wait_returns_the_result_or_says_how_the_job_ended(client: Client, broker: MemoryBroker) -> None:
    done, dead, cancelled = (client.enqueue(double, Number(n)) for n in range(3))
    cancelled.cancel()
    run_one(broker, result=b'{"n":0}')
    run_one(broker, error="OSError: no")
    assert done.wait() == Number(0)
    assert client.job(done.id).wait() == Number(0), "by the task that the job names"
    with pytest.raises(fileq.JobFailed, match="OSError: no") as failed:
        dead.wait()
    assert (failed.value.error, failed.value.attempts) == ("OSError: no", 1)
    with pytest.raises(fileq.JobCancelled):
        cancelled.wait()
    waiting = client.enqueue(double, Number(1))
    with pytest.raises(TimeoutError, match=r"has not ended within 10ms; it is pending$"):
        waiting.wait(0.01)
    broker.deregister(["w"])
    with pytest.raises(TimeoutError, match=r"has not ended within 10ms; it is pending: no worker is running$"):
        waiting.wait(0.01)
    later = client.enqueue(double, Number(1), delay="1h")
    with pytest.raises(TimeoutError, match="it is scheduled: no worker is running"):
        later.wait(0.01)


def test_a_result_of_another_type_is_an_error(client: Client, broker: MemoryBroker) -> None:
    handle = client.enqueue(double, Number(1))
    run_one(broker, result=b'"two"')
    with pytest.raises(JobError, match="is not what task 'double' returns"):
        handle.wait()
    untyped = client.enqueue("elsewhere")
    run_one(broker, result=b'"two"')
    assert untyped.wait() == "two"


def test_a_dead_job_is_put_back_and_one_that_is_not_dead_is_refused(client: Client, broker: MemoryBroker) -> None:
    handle = client.enqueue(fail, "x", unique_key="k")
    with pytest.raises(JobError, match="it is pending, not dead"):
        handle.retry()
    run_one(broker, error="no")
    holder = client.enqueue(fail, "x", unique_key="k")
    with pytest.raises(JobError, match=f"job {holder.id} has the same unique key and is not finished"):
        handle.retry()
    holder.cancel()
    handle.retry()
    assert handle.status().status == "pending"
    with pytest.raises(JobError, match="not found"):
        client.job("no-such").retry()


def test_clear_cancels_what_waits_and_leaves_later_jobs(client: Client, broker: MemoryBroker) -> None:
    push_raw(broker, "low", b"not a job")
    handles = client.enqueue_many(double.call(Number(n)) for n in range(1100))
    clear = broker.clear
    late: list[str] = []

    def clear_while_jobs_arrive(queue: str, raws: Sequence[bytes], follow_ups: object = None) -> int:
        late.append(client.enqueue(double, Number(0)).id)
        return clear(queue, raws)

    broker.clear = clear_while_jobs_arrive  # type: ignore[method-assign, assignment]
    assert client.clear("low") == 1100
    assert handles[-1].status().status == "cancelled"
    assert client.size("low") == len(late) + 1
    with pytest.raises(ConfigError, match="no queue is named 'mid'; the queues are high, low"):
        client.clear("mid")


def test_the_payload_of_a_job_has_the_type_of_its_task(client: Client) -> None:
    handle = client.enqueue(double, Number(1))
    assert handle.status().payload == client.job(handle.id).status().payload == Number(1)
    assert client.enqueue("elsewhere", {"n": 1}).status().payload == {"n": 1}


def test_jobs_are_listed_by_filters_with_their_state(client: Client, broker: MemoryBroker) -> None:
    client.enqueue(double, Number(1), tags={"a": "b"})
    client.enqueue("elsewhere", [2])
    run_one(broker, error="OSError: no")
    [dead] = client.jobs(status="dead", since="1h")
    assert (dead.status, dead.type, dead.payload, dead.error, dead.attempt_count) == (
        "dead",
        "double",
        Number(1),
        "OSError: no",
        1,
    )
    assert [job.payload for job in client.jobs(type="elsewhere")] == [[2]]
    assert dead.fingerprint is not None
    assert [job.id for job in client.jobs(tag={"a": "b"}, fingerprint=dead.fingerprint[:4], q="DOUBLE")] == [dead.id]
    assert list(client.jobs(tag={"a": "c"})) == []
    assert list(client.jobs(until=datetime.now(UTC) - timedelta(hours=1))) == []
    with pytest.raises(ConfigError, match="status is 'odd'; it must be one of pending, scheduled, running"):
        client.jobs(status="odd")  # type: ignore[typeddict-item]
    batch = client.batch()
    member = batch.add(fail, "x")
    assert [job.id for job in client.jobs(batch=batch)] == [member.id] == [job.id for job in client.jobs(type=fail)]
    for limit in -1, "2":
        with pytest.raises(ConfigError, match=f"limit is {limit!r}; it must be a whole number of at least 0"):
            client.jobs(limit=limit)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected filter 'stat'"):
        client.jobs(stat="dead")  # type: ignore[call-arg]


def test_a_file_is_enqueued_under_its_roots_and_its_trace_is_found(
    client: Client, broker: MemoryBroker, tmp_path: Path
) -> None:
    (tmp_path / "a.pdf").write_bytes(b"123")
    handle = client.enqueue_file(tmp_path / "a.pdf", tags={"by": "hand"})
    assert job_of(broker, handle.id).priority == "high"
    assert [version.job_id for version in client.file(tmp_path / "a.pdf").versions] == [handle.id]
    [listed] = client.jobs(match="*.pdf")
    assert (listed.path, listed.tags) == (str(tmp_path / "a.pdf"), {"by": "hand"})
    with pytest.raises(BrokerError, match="nothing is known about"):
        client.file(tmp_path / "b.pdf")
    with pytest.raises(ConfigError, match="there is no such file"):
        client.enqueue_file(tmp_path / "b.pdf")


def test_events_are_those_since_the_call_that_match(client: Client, broker: MemoryBroker) -> None:
    client.enqueue(double, Number(0))
    with client.events("job:created", "job.dead") as events:
        handle = client.enqueue(double, Number(1))
        run_one(broker)
        run_one(broker, error="no")
        assert [(next(events).event, handle.id) for _ in range(2)] == [
            ("job:created", handle.id),
            ("job:dead", handle.id),
        ]
        assert events.next_within(0) is None
    assert list(events) == []
    with pytest.raises(ConfigError, match="no event matches 'jobs:done'; known: batch:finished, job:cancelled"):
        client.events("jobs:done")
