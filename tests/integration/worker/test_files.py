"""Files that vanish, change, move or have dangerous names; and jobs that cannot be run. The installed program."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

from fileq.brokers.types import Entry
from fileq.core.job import State, file_job, raw_id
from tests.support.producer_setup import wait_for_new_scan
from tests.support.servers import Server
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, ids, on_files


def test_a_job_that_cannot_be_run_is_dead_with_the_reason_and_its_bytes_intact(
    setup: WorkerSetup, valkey: Server
) -> None:
    client = valkey.client()
    garbage = [b"\xff\xfe not a job {", b"{}", b'{"id": "x"}', b"", b"[1, 2]"]
    client.lpush("jobqueue:low_priority", *garbage)
    unknown = (
        '{"id":"unknown","filepath":"","filesize":0,"priority":"low","retries":0,"creation_time":"",'
        '"trace_id":"","span_id":"","type":"unknown-type",'
        '"payload":{"big": 12345678901234567890123, "empty": []},"theirs":[1.50]}'
    )
    client.lpush("jobqueue:low_priority", unknown)
    pwned = setup.directory / "pwned"
    setup.enqueue("command", "disabled", payload={"command": f"touch {pwned}"})
    setup.enqueue("note", "good")
    worker = setup.worker(count=4)
    raws = [raw_id(raw) for raw in garbage]
    assert setup.wait_ended([*raws, "unknown", "disabled", "good"]) == {"dead": 7, "completed": 1}
    dead = setup.broker.peek("dead_letter", 100)
    assert len(dead) == 7
    assert set(garbage) < set(dead), "byte for byte"
    assert all("not a job" in setup.record(id).error for id in raws)
    assert "unknown-type" in (setup.job("unknown").error or "")
    kept = setup.record("unknown").raw
    assert b'"payload":{"big": 12345678901234567890123, "empty": []}' in kept
    assert b'"theirs":[1.50]' in kept
    assert "allow_commands" in (setup.job("disabled").error or "")
    assert not pwned.exists()
    # Nothing ran, so neither the jobs nor the counters record a failure.
    assert {(setup.job(id).retries, setup.job(id).recoveries) for id in ("unknown", "disabled")} == {(0, 0)}
    assert all(setup.job(id).failed_at for id in ("unknown", "disabled"))
    assert {a.outcome for id in [*raws, "unknown", "disabled"] for a in setup.record(id).attempts} == {"refused"}
    census = setup.census()
    assert (census.counters["dead"], census.counters.get("failed", 0), census.drift) == (7, 0, 0)
    wait_until(lambda: worker.metric("jobs_dead_letter_total") == 7, 10)
    assert worker.metric("jobs_failed_total") == 0


def test_a_changed_file_is_left_to_the_job_of_its_new_version_or_run_as_it_is(each_setup: WorkerSetup) -> None:
    setup = each_setup
    superseded, alone = setup.inbox / "superseded", setup.inbox / "alone"
    superseded.write_bytes(b"1")
    setup.enqueue_file(superseded, "old")
    superseded.write_bytes(b"22")
    setup.enqueue_file(superseded, "new")
    alone.write_bytes(b"1")
    setup.enqueue_file(alone, "alone")
    alone.write_bytes(b"333")
    setup.worker(count=2, handlers=on_files("on_file"))
    setup.wait_for(State.COMPLETED, ["old", "new", "alone"])
    # The handler logs the size of the file in place of its pid.
    assert sorted((line.id, line.pid) for line in setup.handler_log("file")) == [("alone", 3), ("new", 2)]
    assert [attempt.outcome for attempt in setup.record("old").attempts] == ["superseded"]
    assert setup.census().counters["superseded"] == 1


def test_after_its_job_a_file_is_deleted_or_moved_and_never_replaces_another(setup: WorkerSetup) -> None:
    done = setup.directory / "done"
    for folder in ("a", "b"):
        (setup.inbox / folder).mkdir()
        (setup.inbox / folder / "same.txt").write_text(folder)
        setup.enqueue_file(setup.inbox / folder / "same.txt", folder)
    (setup.inbox / "bad.txt").write_text("bad")
    setup.enqueue_file(setup.inbox / "bad.txt", "bad")
    handlers = on_files("on_file").replace("[", '[{match: "bad.txt", use: "worker_handlers:permanent"}, ')
    after = {"worker__after__completed": f"move:{done}", "worker__after__dead": "delete"}
    worker = setup.worker(count=2, handlers=handlers, **after)
    assert setup.wait_ended(["a", "b", "bad"]) == {"completed": 2, "dead": 1}
    assert worker.stop() == 0  # it waits for the post actions
    assert [(done / folder / "same.txt").read_text() for folder in ("a", "b")] == ["a", "b"]
    assert [path for path in setup.inbox.rglob("*") if path.is_file()] == []


def test_a_version_written_while_the_previous_one_was_processed_is_neither_deleted_nor_moved(
    setup: WorkerSetup,
) -> None:
    path = setup.inbox / "file"
    path.write_bytes(b"1")
    setup.enqueue_file(path, "old")
    worker = setup.worker(count=1, worker__after__completed="delete", handlers=on_files("on_file_after_gate"))
    setup.wait_logged("start", 1)
    path.write_bytes(b"22")
    setup.open_gate()
    setup.wait_for(State.COMPLETED, ["old"])
    assert worker.wait_for("file.kept")["path"] == str(path)
    assert path.read_bytes() == b"22"
    setup.enqueue_file(path, "new")
    setup.wait_for(State.COMPLETED, ["new"])
    wait_until(lambda: not path.exists(), 10, "now it is deleted")


def test_a_file_outside_the_roots_is_neither_read_nor_deleted_nor_moved(setup: WorkerSetup) -> None:
    """Every program that can push a job can name any path, also with dots and links."""
    outside = setup.directory / "outside"
    outside.mkdir()
    (setup.inbox / "link").symlink_to(outside)
    names = {
        "plain": outside / "plain",
        "dots": setup.inbox / ".." / "outside" / "dots",
        "link": setup.inbox / "link/x",
    }
    for id, path in names.items():
        path.write_bytes(b"precious")
        setup.enqueue_file(path, id)
    worker = setup.worker(count=1, worker__after__dead="delete", handlers=on_files("on_file"))
    setup.wait_for(State.DEAD, list(names))
    worker.wait_for("file.kept", count=3)
    assert sorted(path.name for path in outside.iterdir()) == ["dots", "plain", "x"]
    assert setup.logged("file") == []


def test_a_file_that_was_changed_in_place_or_before_its_run_is_deleted_too(setup: WorkerSetup) -> None:
    """What counts is the version that was processed."""
    in_place, changed = setup.inbox / "in-place", setup.inbox / "changed"
    for path in (in_place, changed):
        path.write_bytes(b"1")
        setup.enqueue_file(path, path.name)
    changed.write_bytes(b"22")
    first = '[{match: "in-place", use: "worker_handlers:in_place", in_place: true}, '
    handlers = on_files("on_file").replace("[", first)
    setup.worker(count=2, worker__after__completed="delete", handlers=handlers)
    setup.wait_for(State.COMPLETED, ["in-place", "changed"])
    wait_until(lambda: list(setup.inbox.iterdir()) == [], 10)


def test_the_version_that_a_handler_leaves_in_place_is_not_enqueued_again(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    (setup.inbox / "file").write_bytes(b"text")
    program = setup.worker(
        role="all", count=1, handlers=on_files("in_place", in_place=True), producer__rescan_interval="1s"
    )
    setup.wait_logged("changed", 1)
    wait_for_new_scan(program, 2)
    (setup.inbox / "other").write_bytes(b"text")  # proof that it still scans
    setup.wait_logged("changed", 2)
    wait_for_new_scan(program, 1)
    assert len(setup.logged("changed")) == len(set(setup.logged("changed"))) == 2
    assert (setup.inbox / "file").read_bytes() == b"text was here"
    assert setup.census().counters["produced"] == 2


def test_a_path_of_the_producer_is_mapped_to_a_path_of_the_worker(setup: WorkerSetup) -> None:
    (setup.inbox / "file").write_bytes(b"12345")
    (setup.directory / "secret").write_bytes(b"1")
    for id, name in (("mapped", b"file"), ("outside", b"../secret")):
        job = file_job(b"/srv/theirs/" + name, size=5, priority="low", now=datetime.now(UTC), id=id)
        setup.broker.enqueue([Entry(job, "low")])
    setup.worker(
        "/srv/theirs",
        count=1,
        max_retries=0,
        path_map=f"{{/srv: /nowhere, /srv/theirs: {setup.inbox}}}",
        handlers=on_files("on_file"),
    )
    assert setup.wait_ended(["mapped", "outside"]) == {"completed": 1, "dead": 1}
    assert [(line.id, line.pid) for line in setup.handler_log("file")] == [("mapped", 5)]
    assert "allowed" in (setup.job("outside").error or "")


def test_a_root_that_disappears_holds_its_file_jobs_until_it_is_back(setup: WorkerSetup) -> None:
    worker = setup.worker(count=1, handlers=on_files("on_file"))
    wait_until(lambda: worker.readiness()[0] == 200, 10)
    (setup.inbox / "file").write_text("x")
    setup.broker.pause("low")
    setup.enqueue_file(setup.inbox / "file", "file")
    away = setup.inbox.rename(setup.directory / "unmounted")
    wait_until(lambda: worker.readiness()[0] == 503, 10)
    assert str(setup.inbox) in str(worker.readiness()[1])
    setup.broker.resume("low")
    setup.wait_for(State.COMPLETED, setup.enqueue("note", *ids("runs", 3)))
    wait_until(lambda: setup.record("file").deferred_count > 0)
    away.rename(setup.inbox)
    setup.wait_for(State.COMPLETED, ["file"])
    assert setup.record("file").attempt_count == 1
    wait_until(lambda: worker.readiness()[0] == 200, 10)


NASTY = [
    b"; touch pwned",
    b"$(touch pwned)",
    b"`touch pwned`",
    b"| touch pwned",
    b"&& touch pwned",
    b"a\ntouch pwned\n",
    b"'quote'",
    b'"double"',
    b"-rf",
    b"--help",
    b"*",
    b"?[a]{b,c}",
    b" blanks ",
    b"tab\there",
    b"back\\slash",
    b"{filepath}",
    b"{id}",
    b"%s%n",
    b"$HOME",
    b"~",
    b"#",
    b"!x",
    b"\xff\xfe not text",
    b"\x1b[31mred",
    "ünïcödé 🦊".encode(),
    bytes(byte for byte in range(1, 256) if byte != ord("/")),  # every byte that a name can contain
]


def test_a_file_name_reaches_a_command_as_one_argument_and_nothing_is_executed(sqlite_setup: WorkerSetup) -> None:
    setup = sqlite_setup
    script = setup.directory / "script.sh"
    script.write_text('#!/bin/sh\nprintf "%s %s %s\\0" "$#" "$1" "$FILEQ_JOB_REAL_FILEPATH" >> "$0.log"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    paths = [os.path.join(os.fsencode(setup.inbox), name) for name in NASTY]
    for path in paths:
        Path(os.fsdecode(path)).touch()
    handlers = f'[{{match: "**/*", command: ["{script}", "{{real_filepath}}"]}}]'
    program = setup.worker(str(setup.inbox), "--once", role="all", wait=False, handlers=handlers)
    assert program.wait(60) == 0, program.text()
    lines = (setup.directory / "script.sh.log").read_bytes().split(b"\0")[:-1]
    assert sorted(lines) == sorted(b"1 %s %s" % (path, path) for path in paths)
    assert list(setup.directory.rglob("pwned")) == []
    assert {path.name for path in setup.inbox.iterdir()} == {os.fsdecode(name) for name in NASTY}
