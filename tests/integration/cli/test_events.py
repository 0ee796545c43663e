"""`fileq events`: the real program follows what other processes do with jobs."""

from __future__ import annotations

import json
import signal
import uuid
from contextlib import closing
from typing import Any

from fileq.core.job import State
from tests.support.fault_proxy import FaultProxy
from tests.support.program import Program, command
from tests.support.servers import Server
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup


def following(setup: WorkerSetup, *options: str, **settings: object) -> Program:
    named = {key.replace("__", "."): value for key, value in settings.items()}
    program = Program("events", *options, cwd=setup.directory, settings={**setup.settings, **named}, wait=False)
    wait_until(lambda: "following events" in program.text(), 20)
    return program


def published(program: Program) -> list[dict[str, Any]]:
    return [json.loads(line) for line in program.text().split("\n")[:-1] if line.startswith("{")]


def test_events_of_other_processes_are_followed_until_ctrl_c(each_setup: WorkerSetup) -> None:
    setup = each_setup
    path = setup.inbox / "a.pdf"
    path.write_bytes(b"x")
    with following(setup, "--json") as program, following(setup) as readable:
        setup.worker(count=1, handlers='[{match: "**/*", use: "worker_handlers:note"}]')
        id = setup.enqueue_file(path, str(uuid.uuid4()))
        setup.enqueue("fails_twice", "job-2")
        setup.wait_for(State.COMPLETED, [id, "job-2"])
        wait_until(lambda: sum(event["event"] == "job:completed" for event in published(program)) == 2, 20)
        wait_until(lambda: readable.text().count("job:completed") == 2, 20)
        for follower in (program, readable):
            follower.signal(signal.SIGINT)
            assert follower.wait() == 0
    events = published(program)
    of_file = [event for event in events if event["job_id"] == id]
    assert [event["event"] for event in of_file] == ["job:created", "job:started", "job:completed"]
    assert {event["filepath"] for event in of_file} == {str(path)}
    record = setup.broker.records([id])[0]
    assert record is not None
    assert [event["at"] for event in of_file] == [record.created_ms, record.started_ms, record.ended_ms]
    [line] = [line for line in readable.text().splitlines() if f" job:completed {path} queue=low " in line]
    assert f" id={id[:8]}" in line
    assert id not in readable.text(), "people get ids as short as in the other commands"


def test_on_a_terminal_lines_fit_its_width(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    path = setup.inbox / "a-directory-with-a-long-name" / "another-directory-with-a-long-name" / "a.pdf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    words = command("events", settings=setup.settings)
    with closing(Terminal(words, setup.directory, 80, is_stdout=True)) as terminal:
        terminal.wait_shown("following events")
        setup.enqueue_file(path, "job-1")
        terminal.wait_shown(r"job:created .*/a\.pdf .*id=job-1\r\n")
    [line] = [line for line in terminal.shown().splitlines() if "job:created" in line]
    assert len(line) <= 80
    assert " …/" in line


def test_a_job_that_a_limit_holds_back_is_not_shown_as_started(each_setup: WorkerSetup) -> None:
    setup = each_setup
    with following(setup) as readable, following(setup, "--json") as program:
        setup.worker(count=2, handlers='[{type: gated, use: "worker_handlers:gated", max_running: 1}]')
        setup.enqueue("gated", "first", "second")
        wait_until(lambda: readable.text().count("job:deferred") == 2, 20)
        setup.open_gate()
        setup.wait_for(State.COMPLETED, ["first", "second"])
        wait_until(lambda: readable.text().count("job:completed") == 2, 20)
        wait_until(lambda: sum(event["event"] == "job:completed" for event in published(program)) == 2, 20)
    lines = [line for line in readable.text().splitlines() if "id=second" in line]
    names = [line.split()[1] for line in lines]
    assert names[-2:] == ["job:started", "job:completed"]
    assert names.count("job:started") == 1, "only the start of its handler"
    assert "reason=the limit of gated is reached (max_running: 1)" in lines[1]
    raw = [event["event"] for event in published(program) if event["job_id"] == "second"]
    assert raw.count("job:started") == raw.count("job:deferred") + 1, "programs get what the broker publishes"


def test_a_lost_connection_is_reported_and_following_continues(setup: WorkerSetup, valkey: Server) -> None:
    with FaultProxy(valkey.port) as proxy, following(setup, redis__addr=f"127.0.0.1:{proxy.port}") as program:
        setup.enqueue("note", "before")
        wait_until(lambda: "id=before" in program.text(), 20)
        proxy.reset_all()
        wait_until(lambda: "connected again" in program.text(), 20)
        setup.enqueue("note", "after")
        wait_until(lambda: "id=after" in program.text(), 20)
        assert "trying again" in program.text()
        program.signal(signal.SIGINT)
        assert program.wait() == 0
