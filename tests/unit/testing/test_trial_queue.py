"""fileq.testing.queue: everything runs, nothing sleeps, and only the test moves the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fileq
import fileq.testing
from fileq.client.async_client import AsyncHandle
from fileq.config import config_from
from fileq.core.errors import ConfigError
from fileq.testing import TrialQueue
from tests.support import trial_tasks as app


@pytest.fixture
def q() -> Iterator[TrialQueue]:
    with fileq.testing.queue(imports=["tests.support.trial_tasks"], config={"worker": {"max_retries": 2}}) as q:
        yield q


def test_a_task_is_run_by_drain_and_its_result_has_its_type(q: TrialQueue) -> None:
    handle = app.double.enqueue(app.Number(21), tags={"tenant": "acme"})
    assert (handle.fate, type(handle.fate)) == ("enqueued", str)
    assert handle.status().status == "pending"
    assert q.drain() == 1
    [job] = q.completed("double")
    assert (job.payload, job.result, job.tags) == (app.Number(21), {"n": 42}, {"tenant": "acme"})
    assert handle.wait() == app.Number(42)


def test_a_misspelt_type_is_an_error_and_not_an_empty_list(q: TrialQueue) -> None:
    assert q.completed("double") == q.completed(app.double) == []
    with pytest.raises(ConfigError, match=r"no handler for type 'doubel'; did you mean 'double'\?"):
        q.completed("doubel")


def test_a_caller_that_waits_runs_the_queue_up_to_its_job(q: TrialQueue) -> None:
    later = app.double.enqueue(app.Number(1), delay="1h")
    assert app.double.enqueue(app.Number(2)).wait() == app.Number(4)
    assert later.status().status == "scheduled"
    assert later.wait(timeout=1) == app.Number(2)


def test_retries_and_delays_take_no_time(q: TrialQueue) -> None:
    handle = app.fail.enqueue("always", delay="30d")
    assert q.drain() == 3
    with pytest.raises(fileq.JobFailed) as caught:
        handle.wait()
    assert (caught.value.attempts, caught.value.error.split(" (")[0]) == (3, "OSError: always")
    assert [job.type for job in q.dead] == ["fail"]


def test_attempts_are_counted_on_after_a_manual_retry(q: TrialQueue) -> None:
    handle = app.attempt.enqueue()
    for _ in range(3):
        q.drain()
        handle.retry()
    q.drain()
    status = handle.status()
    assert [attempt.error.split(" (")[0] for attempt in status.attempts if attempt.error] == [
        f"OSError: attempt {number}" for number in range(1, 13)
    ]
    assert (status.attempt_count, status.retry_count) == (12, 3)


def test_results_are_kept_however_much_time_passes(q: TrialQueue) -> None:
    handle = app.double.enqueue(app.Number(1))
    q.advance("90d")
    assert (handle.wait(), len(q.completed("double"))) == (app.Number(2), 1)
    config = {"worker": {"history_ttl": "2h"}}
    with fileq.testing.queue(imports=["tests.support.trial_tasks"], config=config) as forgetful:
        handle = forgetful.enqueue(app.double, app.Number(1))
        forgetful.advance("3h")
        with pytest.raises(fileq.ResultExpired):
            handle.wait()


def test_advance_runs_what_becomes_due_in_that_time_and_no_more(q: TrialQueue) -> None:
    app.double.enqueue(app.Number(1), delay="50m")
    app.double.enqueue(app.Number(2), delay="70m")
    assert q.advance("1h") == 1
    assert q.advance("9m") == 0
    assert q.advance("1m") == 1


def test_a_deadline_is_a_time_of_this_clock(q: TrialQueue) -> None:
    q.advance("1d")
    kept = app.double.enqueue(app.Number(1), deadline="5m")
    missed = app.double.enqueue(app.Number(2), delay="10m", deadline="5m")
    q.drain()
    assert kept.status().status == "completed"
    assert missed.status().error == "deadline passed"


def test_a_job_that_still_waits_dies_at_its_deadline_and_not_when_it_is_due(q: TrialQueue) -> None:
    missed = app.double.enqueue(app.Number(1), delay="2h", deadline="1h")
    q.advance("59m")
    assert missed.status().status == "scheduled"
    q.advance("2m")
    assert (missed.status().status, missed.status().error) == ("dead", "deadline passed")


def test_the_deadline_of_a_member_ends_its_batch(q: TrialQueue) -> None:
    with q.client.batch(finally_=app.double.call(app.Number(3))) as batch:
        batch.add(app.double, app.Number(1), delay="3h", deadline="1h")
    q.advance("61m")
    assert batch.status().status == "finished"


def test_catch_and_finally_of_a_child_batch_run_though_its_death_cancels_the_parent(q: TrialQueue) -> None:
    catch, last = app.double.call(app.Number(1)), app.double.call(app.Number(2))
    with q.batch("outer") as outer, q.batch("inner", parent=outer, catch=catch, finally_=last) as inner:
        inner.add(app.fail, "bad")
    q.drain()
    assert [job.id for job in q.completed("double")] == [f"{inner.id}.catch", f"{inner.id}.finally"]
    assert (outer.status().status, outer.status().is_cancelled) == ("finished", True)


def test_the_deadline_of_a_follow_up_counts_from_the_end_of_the_job_before_it(q: TrialQueue) -> None:
    q.advance("1d")
    app.follow_with.enqueue({"deadline": "5m"}, delay="1h")
    app.follow_with.enqueue({"deadline": "5m", "delay": "6m"}, delay="1h")
    q.drain()
    assert len(q.completed("double")) == 1
    assert [job.error for job in q.dead] == ["deadline passed"]


def test_a_dropped_file_is_found_by_the_producer_and_handled(q: TrialQueue) -> None:
    handle = q.drop("sub/a.txt", "hello")
    q.drain()
    assert handle.wait() == 5
    assert [Path(job.path).name for job in q.completed()] == ["a.txt"]
    assert q.drop("sub/a.txt", "hello").id != handle.id, "the same content again is a new version"
    with pytest.raises(ConfigError, match="the producer does not take"):
        q.drop("b.tmp")


def test_a_handler_that_hangs_is_stopped_at_its_timeout(q: TrialQueue) -> None:
    app.hang.enqueue(timeout=0.05, max_retries=0)
    q.drain()
    assert q.dead[0].error == "timed out after 50ms"


def test_what_is_no_call_is_refused_with_the_way_out(q: TrialQueue) -> None:
    for wrong in ("in/a.txt", app.double):
        with pytest.raises(ConfigError, match=r"is not a call; give task\.call\(payload\), fileq\.Call"):
            q.client.enqueue_many([app.double.call(app.Number(1)), wrong])  # type: ignore[list-item]
    assert q.client.size("low") == 0


def test_what_is_no_batch_is_refused_with_the_name_of_the_option(q: TrialQueue) -> None:
    given: Any = {"batch": 7}
    for use in (lambda: q.enqueue(app.again, **given), lambda: q.client.jobs(**given)):
        with pytest.raises(ConfigError, match=r"^batch is 7; it must be a batch, or its id$"):
            use()
    given = {"parent": 7}
    with pytest.raises(ConfigError, match=r"^parent is 7; it must be a batch, or its id$"):
        q.batch(**given)


def test_a_payload_with_a_number_that_json_does_not_have_is_refused(q: TrialQueue) -> None:
    for payload in float("inf"), {"a": [float("-inf")]}, app.Number(float("nan")):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"of task 'any' contains (-?inf|nan), which JSON does not have"):
            q.enqueue("any", payload)


def test_a_job_is_looked_up_by_the_text_of_its_id(q: TrialQueue) -> None:
    with pytest.raises(TypeError, match="id is 5; give the id of a job as text"):
        q.client.job(5)  # type: ignore[arg-type]
    unknown = q.client.job("five").status()
    assert (unknown.status, unknown.is_finished) == ("unknown", True), "so that nothing waits for it for ever"


def test_a_job_that_never_ran_has_no_attempts(q: TrialQueue) -> None:
    late = app.double.enqueue(app.Number(1), delay="2h", deadline="1h")
    unknown = q.enqueue("no-such-task")
    q.drain()
    for handle, error in (late, "deadline passed"), (unknown, "no handler for type 'no-such-task'; "):
        with pytest.raises(fileq.JobFailed) as caught:
            handle.wait()
        assert str(caught.value).startswith(error)
        assert str(caught.value).endswith("(it never ran)")
        assert (caught.value.attempts, handle.status().run_count) == (0, 0)
    assert [job.run_count for job in q.dead] == [0, 0]


def test_a_coroutine_follows_events_and_closes_them(q: TrialQueue) -> None:
    async def follow() -> list[str]:
        async with q.async_client.events("job:completed") as events:
            handle = await q.async_client.enqueue(app.double, app.Number(1))
            async for event in events:
                found = [event.job_id, handle.id]
                break
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        return found

    found, wanted = asyncio.run(follow())
    assert found == wanted


def test_coroutines_run_and_an_async_client_waits(q: TrialQueue) -> None:
    async def use() -> int:
        client = fileq.AsyncClient.of(q.client)
        handle = await client.enqueue(app.total, [1, 2, 3])
        assert [job.id async for job in client.jobs(status="pending")] == [handle.id]
        return await handle.wait()

    assert asyncio.run(use()) == 6


def test_what_a_client_and_its_jobs_and_batches_have_coroutines_have_too(q: TrialQueue) -> None:
    job, batch = app.double.enqueue(app.Number(1)), q.batch()
    pairs = (
        (q.client, q.async_client),
        (job, AsyncHandle(job)),
        (batch, asyncio.run(q.async_client.find_batch(batch.id))),
    )
    missing = {
        name for one, other in pairs for name in dir(one) if not name.startswith("_") and not hasattr(other, name)
    }
    assert missing == {"over", "transport", "wait_unless"}, "these are for fileq itself"


def test_a_wait_that_could_never_end_is_an_error(q: TrialQueue) -> None:
    handle = app.double.enqueue(app.Number(1))
    assert handle.cancel() == "cancelled"
    with pytest.raises(fileq.JobCancelled):
        handle.wait()
    with pytest.raises(fileq.ResultExpired, match="no record of job unknown: it never existed or was removed"):
        q.client.job("unknown").wait()
    with pytest.raises(RuntimeError, match="would never end"):
        next(q.client.events("job:dead"))


def test_a_job_that_enqueues_itself_for_ever_ends_the_drain(q: TrialQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fileq.testing.trial_queue.MOST_ATTEMPTS", 20)
    app.again.enqueue()
    with pytest.raises(RuntimeError, match="does a job enqueue itself"):
        q.drain()


def test_a_handler_that_waits_for_another_job_is_told_that_it_cannot(q: TrialQueue) -> None:
    app.wait_for_other.enqueue(max_retries=0)
    q.drain()
    assert "a handler can't run the queue that runs it" in str(q.dead[0].error)


@pytest.mark.parametrize("path", ["../x", "/tmp/fileq-outside", "", ".", "sub/..", "a/../../x", "link/x"])
def test_a_file_is_dropped_below_the_directory_only(q: TrialQueue, tmp_path: Path, path: str) -> None:
    (q.directory / "link").symlink_to(tmp_path)
    before = {file for place in (q.directory, q.directory.parent, tmp_path) for file in place.iterdir()}
    with pytest.raises(ConfigError, match=r"must be below q\.directory"):
        q.drop(path, "content")
    written = {file for place in (q.directory, q.directory.parent, tmp_path) for file in place.iterdir()} - before
    assert not [file for file in written if file.name in ("x", "fileq-outside", ".x.tmp", "sub", "a")]
    q.drop("a/../a.txt")


def test_a_coroutine_that_waits_for_another_job_is_told_that_it_cannot(q: TrialQueue) -> None:
    """It hung for good: its wait has a thread of its own, which waited for the step that ran the coroutine."""
    app.wait_async.enqueue(max_retries=0)
    q.drain()
    assert "a handler can't run the queue that runs it" in str(q.dead[0].error)
    assert q.completed("double")[0].payload == app.Number(7), "what it enqueued runs afterwards"


@pytest.mark.parametrize("task", [app.interrupt, app.interrupt_async])
def test_what_is_meant_for_the_test_itself_ends_the_drain(q: TrialQueue, task: fileq.Task[str, None]) -> None:
    """Ctrl-C in a handler was a failed attempt, and the test went on."""
    meant = {"ctrl-c": KeyboardInterrupt, "fail": pytest.fail.Exception, "skip": pytest.skip.Exception}
    for payload, error in meant.items():
        handle = task.enqueue(payload, max_retries=0)
        later = app.double.enqueue(app.Number(1))
        with pytest.raises(error, match=payload):
            q.drain()
        assert later.status().status != "completed", "nothing else was run"
        assert q.drain() == 1, "the queue can be used on"
        assert handle.status().status == "dead"


@pytest.mark.parametrize("task", [app.interrupt, app.interrupt_async])
def test_every_other_exception_is_a_failed_attempt_as_in_a_worker(q: TrialQueue, task: fileq.Task[str, None]) -> None:
    """One that is no Exception ended the drain, and its job was still running."""
    handles = [task.enqueue(payload, max_retries=0) for payload in ("exit", "own")]
    assert q.drain() == 2
    assert [str(one.status().error).split(" (")[0] for one in handles] == ["SystemExit: exit", "OwnError: own"]


def test_a_follow_up_needs_the_payload_of_its_task_and_a_type_that_exists(q: TrialQueue) -> None:
    app.follow.enqueue(["double", "text"], max_retries=0)
    app.follow.enqueue(["double"], max_retries=0)
    app.follow.enqueue(["duoble", {"n": 1}], max_retries=0)
    assert q.drain() == 3
    errors = [str(job.error) for job in q.dead]
    assert "JobError: task 'double' takes a payload of type Number: Expected `object`, got `str`" in errors[0]
    assert "JobError: task 'double' needs a payload of type Number" in errors[1]
    assert "JobError: no handler for type 'duoble'; did you mean 'double'?" in errors[2]
    app.follow.enqueue(["double", {"n": 1}])
    assert q.drain() == 2


def test_a_schedule_of_the_configuration_needs_a_task_that_takes_its_payload() -> None:
    def of(**schedule: Any) -> TrialQueue:
        schedules = {"nightly": {"cron": "@daily", **schedule}}
        return fileq.testing.queue(imports=["tests.support.trial_tasks"], config={"schedules": schedules})

    with pytest.raises(ConfigError, match=r"schedules.nightly: no task or route takes jobs of type 'duoble'"):
        of(type="duoble", payload={"n": 1}).__enter__()
    with pytest.raises(ConfigError, match=r"schedules.nightly: task 'double' takes a payload of type Number"):
        of(type="double", payload={"n": "many"}).__enter__()
    with of(type="double", payload={"n": 1}) as q:
        assert q.advance("1d") == 1


def test_what_is_no_type_and_no_list_of_modules_is_refused(q: TrialQueue) -> None:
    with pytest.raises(ConfigError, match=r"completed\(\) was given <function .*; give a task, the name of a type"):
        q.completed(lambda job, context: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"imports is 'app'; it must be a list of modules, such as \['app'\]"):
        fileq.testing.queue(imports="app")


def test_a_duration_that_is_none_is_refused_with_what_was_given(q: TrialQueue) -> None:
    with pytest.raises(ConfigError, match=r"duration is 'soon'; it must be a duration such as"):
        q.advance("soon")


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5", True])
def test_a_wait_of_an_impossible_length_is_refused(q: TrialQueue, timeout: Any) -> None:
    handle = app.double.enqueue(app.Number(1))
    with pytest.raises(ConfigError, match="it must be a number of seconds, at least 0"):
        handle.wait(timeout)
    with q.batch() as batch:
        batch.add(app.double, app.Number(2))
    with pytest.raises(ConfigError, match="it must be a number of seconds, at least 0"):
        batch.wait(timeout)
    assert handle.wait(float("inf")) == app.Number(2)


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The queue of the program, which tests must not reach. Without it that would be Redis on its usual port."""
    monkeypatch.setenv("FILEQ_BROKER", "sqlite")
    monkeypatch.setenv("FILEQ_SQLITE_PATH", str(tmp_path / "real.db"))


def test_every_client_without_an_address_uses_the_test_queue(real: None, q: TrialQueue) -> None:
    """A test enqueued jobs of production: a client that the program made went to the real broker."""
    assert fileq.Client().enqueue(app.double, app.Number(1)).wait() == app.Number(2)

    async def use() -> list[fileq.AsyncHandle[app.Number]]:
        return [await client.enqueue(app.double, app.Number(2)) for client in (fileq.AsyncClient(), q.async_client)]

    assert [handle.id for handle in asyncio.run(use())] == [job.id for job in q.client.jobs(status="pending")]
    with fileq.Client() as client, client.batch() as batch:
        batch.add(app.double, app.Number(3))
    assert q.drain() == 3
    assert [job.payload.n for job in q.completed("double")] == [1, 2, 2, 3], "closing a client leaves the queue open"


def test_a_client_that_was_made_before_the_test_uses_its_queue_during_it(real: None) -> None:
    with fileq.Client() as client:
        before = client.enqueue("double", {"n": 1})
        with fileq.testing.queue(imports=["tests.support.trial_tasks"]) as q:
            inside = client.enqueue(app.double, app.Number(2))
            assert (before.status().status, inside.status().status) == ("unknown", "pending")
            assert (before.cancel(), client.clear("low"), q.client.size("low")) == ("unknown", 1, 0)
            with pytest.raises(fileq.BatchError):
                client.find_batch("b")
        assert [job.id for job in client.jobs()] == [before.id]
        assert (before.status().status, inside.status().status) == ("pending", "unknown")


def test_a_test_queue_without_its_with_refuses_every_use(real: None, tmp_path: Path) -> None:
    """It looked like a test queue, and the jobs went to the real one."""
    q: Any = fileq.testing.queue(imports=["tests.support.trial_tasks"])
    uses: list[Callable[[], Any]] = [
        lambda: app.double.enqueue(app.Number(1)),
        lambda: fileq.Client().enqueue("double", {"n": 1}),
        lambda: fileq.Client("sqlite:real.db").size("low"),
        lambda: q.enqueue("double", {"n": 1}),
        lambda: q.batch(),
        lambda: q.drop("a.txt"),
        lambda: q.drain(),
        lambda: q.advance("1h"),
        lambda: q.completed(),
        lambda: q.fired("nightly"),
        lambda: q.dead,
        lambda: q.client,
        lambda: q.directory,
        lambda: q.run(),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=r"protects nothing before its `with` begins; write: with fileq\.testing"):
            use()
    assert not list(tmp_path.iterdir())
    with q:
        assert app.double.enqueue(app.Number(1)).wait() == app.Number(2)
        with pytest.raises(AttributeError, match="a test queue has no 'run'"):
            q.run()
    with pytest.raises(ConfigError, match="for one `with`"):
        q.__enter__()


def test_a_test_queue_whose_with_has_ended_takes_and_runs_nothing_more() -> None:
    """It took jobs that never ran."""
    with fileq.testing.queue(imports=["tests.support.trial_tasks"]) as q:
        client, ended = q.client, q.enqueue(app.double, app.Number(1))
        q.drain()
        left, batch = q.enqueue(app.double, app.Number(2)), q.batch()
    uses: list[Callable[[], Any]] = [
        lambda: q.enqueue(app.double, app.Number(1)),
        lambda: client.enqueue("double", {"n": 1}),
        lambda: asyncio.run(q.async_client.enqueue("double", {"n": 1})),
        lambda: client.schedule("nightly", "@daily", "double", {"n": 1}),
        lambda: batch.add(app.double, app.Number(1)),
        lambda: q.batch(),
        lambda: q.drop("a.txt"),
        lambda: q.drain(),
        lambda: q.advance("1h"),
        lambda: left.wait(1),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=r"the `with` of this test queue has ended, so nothing runs its jobs"):
            use()
    assert not q.directory.exists()
    assert (ended.wait(), [job.id for job in q.completed("double")]) == (app.Number(2), [ended.id]), "it can be read"
    assert left.status().status == "pending"


@pytest.mark.parametrize("where", ["sqlite:real.db", "redis://127.0.0.1:1/0", "http://127.0.0.1:1", "config", "file"])
def test_a_client_with_an_address_is_refused_in_a_test_queue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.yaml").write_text("broker: sqlite\n")
    given: Any = {"config": config_from({"broker": "sqlite"}), "file": "other.yaml"}.get(where, where)
    client = fileq.Client(given, key="k" if where.startswith("http") else "")
    calls: list[Callable[[], object]] = [
        lambda: client.enqueue("double", {"n": 1}),
        lambda: client.job("a").cancel(),
        lambda: list(client.jobs()),
        lambda: client.batch(),
        lambda: client.events(),
        lambda: asyncio.run(fileq.AsyncClient.of(client).size("low")),
    ]
    with fileq.testing.queue() as q:
        for call in calls:
            with pytest.raises(ConfigError, match=r"inside fileq\.testing\.queue no client may reach another queue"):
                call()
        assert list(q.client.jobs()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.yaml"], "nothing was opened"


def test_outside_of_the_block_tasks_do_not_use_the_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FILEQ_BROKER", "memory")
    with fileq.testing.queue() as q:
        app.double.enqueue(app.Number(1))
        assert q.client.size("low") == 1
    with pytest.raises(ConfigError, match="broker is 'memory'"):
        app.double.enqueue(app.Number(1))
