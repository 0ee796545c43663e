"""A root that is missing stops only its own file jobs. The installed program, on both brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fileq.core.job import State
from tests.support import program
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, ids, on_files


def two_roots(setup: WorkerSetup) -> tuple[Path, Path, dict[str, object]]:
    """A volume, another root, and the settings of a worker with both."""
    volume, other = setup.directory / "volume", setup.directory / "other"
    for root in (volume, other):
        root.mkdir()
        for n in range(5):
            (root / f"{n}.txt").write_text("x")
            setup.enqueue_file(root / f"{n}.txt", f"{root.name}-{n}")
    settings = {"allowed_roots": f"[{json.dumps(str(volume))}, {json.dumps(str(other))}]"}
    return volume, other, {**settings, "handlers": on_files("on_file")}


def test_a_missing_root_defers_its_file_jobs_and_all_others_run(each_setup: WorkerSetup) -> None:
    setup = each_setup
    volume, _, settings = two_roots(setup)
    away = volume.rename(setup.directory / "unmounted")
    typed = setup.enqueue("note", *ids("typed", 5))
    worker = setup.worker(count=2, **settings)
    assert setup.wait_ended([*ids("other", 5), *typed], 20) == {"completed": 10}
    lost = worker.wait_for("root.lost")
    assert lost["path"] == str(volume)
    reason = f"the root {volume} is missing (not mounted?)"
    wait_until(lambda: {setup.record(job).deferred for job in ids("volume", 5)} == {reason})
    code, answer = worker.readiness()
    assert (code, answer["reasons"]["worker"]) == (503, reason)
    for words in ("stats", "workers"):
        shown = program.run(words, cwd=setup.directory, settings=setup.all_settings())
        assert f"{reason}; its file jobs are deferred" in shown.stdout
    away.rename(volume)
    worker.wait_for("root.restored")
    setup.wait_for(State.COMPLETED, ids("volume", 5))
    assert {(setup.record(job).attempt_count, setup.job(job).retries) for job in ids("volume", 5)} == {(1, 0)}
    assert [len(worker.events(name)) for name in ("root.lost", "root.restored", "job.deferred")] == [1, 1, 1]
    wait_until(lambda: worker.readiness()[0] == 200)
    assert setup.census().drift == 0


def test_no_job_fails_between_the_loss_of_its_root_and_the_next_check(each_setup: WorkerSetup) -> None:
    setup = each_setup
    volume = setup.directory / "volume"
    volume.mkdir()
    jobs = ids("job", 30)
    for id in jobs:
        (volume / id).write_text("x")
        setup.enqueue_file(volume / id, id)
    worker = setup.worker(str(volume), "--count", "2", max_retries=0, handlers=on_files("gated"))
    running = setup.wait_logged("start", 2)
    away = volume.rename(setup.directory / "away")
    (setup.directory / "gate").touch()  # those that run end, and others begin at once
    waiting = [id for id in jobs if id not in running]
    setup.wait_for(State.COMPLETED, running)
    setup.wait_for(State.DEFERRED, waiting)
    worker.wait_for("root.lost")
    away.rename(volume)
    setup.wait_for(State.COMPLETED, waiting)
    assert {(setup.record(id).attempt_count, setup.job(id).retries) for id in jobs} == {(1, 0)}
    assert worker.events("job.dead") == worker.events("job.failed") == []
    assert setup.census().drift == 0


def test_a_run_once_reports_a_missing_root_and_exits_with_1(each_setup: WorkerSetup) -> None:
    setup = each_setup
    volume, _, settings = two_roots(setup)
    volume.rename(setup.directory / "unmounted")
    for role in ("worker", "all"):
        ended = program.run(
            *(role, str(setup.inbox), "--once", "--app-dir", str(setup.directory)),
            cwd=setup.directory,
            settings=setup.all_settings(**settings),
            timeout_s=40,
        )
        assert ended.returncode == 1, ended.stderr
        assert f"left 5 deferred: the root {volume} is missing" in ended.stdout
        assert f"the root {volume} is missing (not mounted?); mount it and run again" in ended.stderr
    assert setup.states(ids("other", 5)) == {"completed": 5}
    assert setup.census().running == 0


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("stop", "'stop' is not a directory; to stop a role, press Ctrl-C or send SIGTERM to its pid"),
        ("restart", "SIGHUP makes a service reload its handlers and settings"),
        ("status", "'fileq workers' the workers"),
        ("scale", "'fileq worker --count N' runs N jobs concurrently"),
        ("imbox", "producer.scan_dir is 'imbox', which does not exist; create it, or choose another"),
    ],
)
def test_a_worker_on_a_directory_that_was_typed_and_does_not_exist_buries_nothing(
    each_setup: WorkerSetup, typed: str, advice: str
) -> None:
    setup = each_setup
    (setup.inbox / "a.txt").write_text("a")
    job = setup.enqueue_file(setup.inbox / "a.txt")
    settings = setup.all_settings(handlers=on_files("note"))
    ended = program.run("worker", typed, "--once", cwd=setup.directory, settings=settings)
    assert (ended.returncode, ended.stdout) == (2, "")
    [line] = ended.stderr.splitlines()
    assert advice in line
    assert setup.states([job]) == {"pending": 1}


def test_a_verb_of_other_programs_that_is_a_directory_is_one(each_setup: WorkerSetup) -> None:
    setup = each_setup
    (setup.directory / "stop").mkdir()
    ended = program.run("worker", "stop", "--once", cwd=setup.directory, settings=setup.all_settings())
    assert ended.returncode == 0, ended.stderr


def test_worker_start_is_the_worker_and_a_configured_scan_dir_may_be_missing(each_setup: WorkerSetup) -> None:
    setup = each_setup
    settings = setup.all_settings(producer__scan_dir="not-mounted")
    with program.Program("worker", "start", "--count", "3", cwd=setup.directory, settings=settings) as worker:
        assert worker.wait_for("role.started")


@pytest.mark.parametrize("handlers", [None, '[{type: other, use: "fileq.handlers:checksum"}]'])
def test_a_worker_that_runs_only_tasks_is_ready_without_a_directory(
    sqlite_setup: WorkerSetup, handlers: str | None
) -> None:
    setup = sqlite_setup
    named = {} if handlers is None else {"handlers": handlers, "producer__scan_dir": "missing"}
    worker = setup.worker("--count", "1", **named)
    setup.wait_for(State.COMPLETED, setup.enqueue("note", "typed"))
    assert worker.readiness()[0] == 200
    assert worker.events("root.lost") == []


def test_a_worker_without_its_default_directory_is_not_ready_once_a_file_job_waits_for_it(
    sqlite_setup: WorkerSetup,
) -> None:
    setup = sqlite_setup
    data = setup.directory / "data"
    data.mkdir()
    (data / "a.txt").write_text("x")
    setup.enqueue_file(data / "a.txt", "a")
    away = data.rename(setup.directory / "unmounted")
    worker = setup.worker("--count", "1", handlers=on_files("on_file"))
    reason = f"the root {data} is missing (not mounted?)"
    wait_until(lambda: setup.record("a").deferred == reason)
    assert worker.wait_for("root.lost")["reason"] == reason
    code, answer = worker.readiness()
    assert (code, answer["reasons"]["worker"]) == (503, reason)
    away.rename(data)
    setup.wait_for(State.COMPLETED, ["a"])
    wait_until(lambda: worker.readiness()[0] == 200)


def test_a_named_directory_that_is_missing_makes_a_worker_of_files_not_ready(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    worker = setup.worker("--count", "1", producer__scan_dir="missing")
    assert worker.wait_for("root.lost")["path"] == str(setup.directory / "missing")
    assert worker.readiness()[0] == 503


@pytest.mark.parametrize("verb", ["completed", "dead"])
def test_a_file_whose_root_was_missing_at_the_end_of_its_job_is_moved_when_the_root_is_back(
    each_setup: WorkerSetup, verb: str
) -> None:
    setup, volume, moved = each_setup, each_setup.directory / "volume", each_setup.directory / "moved"
    volume.mkdir()
    (volume / "a.txt").write_text("a")
    setup.enqueue_file(volume / "a.txt", "a")
    settings = {f"worker__after__{verb}": f"move:{moved}"}
    function = "on_file_after_gate" if verb == "completed" else "permanent_after_gate"
    worker = setup.worker(str(volume), "--count", "1", max_retries=0, handlers=on_files(function), **settings)
    setup.wait_logged("start", 1)
    away = volume.rename(setup.directory / "away")
    setup.open_gate()
    setup.wait_for(State(verb), ["a"])
    worker.wait_for("root.lost")
    away.rename(volume)
    wait_until(lambda: setup.record("a").moved_to == bytes(moved / "a.txt"), 30, "the file is moved")
    assert ((moved / "a.txt").read_text(), list(volume.iterdir()), list(setup.broker.orders(-1))) == ("a", [], [])
