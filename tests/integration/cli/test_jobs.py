"""`fileq admin peek|list|show|trace|cancel`, on both brokers."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
from datetime import UTC, datetime

import pytest

from fileq.brokers.types import Entry
from fileq.core.job import Version, file_job, raw_id, typed_job
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    a_job,
    an_entry,
    burial,
    claim_one,
    completed,
    dead,
    deferred,
    enqueue,
    failed,
    foreign,
    places_of,
    record_of,
    running,
    settle,
)
from fileq.testing.conformance.producers_tests import producer_info
from tests.support.command_line import CommandLine

NOW = datetime.now(UTC)


def ids_of(report: dict[str, list[dict[str, str]]]) -> list[str]:
    return [job["id"] for job in report["jobs"]]


def everything(shell: CommandLine) -> None:
    completed(shell, "c1", "c2")
    dead(shell, "d1")
    settle(shell, failed(running(shell, "r1"), delay_ms=60_000))
    enqueue(shell, "x1")
    shell.broker.cancel(["x1"])
    running(shell, "run1", "w2")
    enqueue(shell, "s1", delay_ms=90_000)
    enqueue(shell, "l1", "l2", "l3")
    enqueue(shell, "h1", queue="high")


# peek


def test_peek_shows_the_next_jobs_of_each_queue_and_moves_nothing(shell: CommandLine) -> None:
    everything(shell)
    assert ids_of(shell.json("admin", "peek")) == ["h1", "l1", "l2", "l3"]
    assert ids_of(shell.json("peek", "--queue", "low", "-n", "2")) == ["l1", "l2"]
    for place, ids in {
        "scheduled": ["r1", "s1"],
        "dead_letter": ["d1"],
        "dlq": ["d1"],
        "completed": ["c2", "c1"],
        "cancelled": ["x1"],
    }.items():
        assert ids_of(shell.json("peek", "--queue", place)) == ids
    out = shell.run("peek")
    assert "high: the next 1" in out
    assert "/data/l3.pdf" in out
    assert " in 1m" in shell.run("peek", "--queue", "scheduled")
    assert "dead_letter: the newest 1" in shell.run("peek", "--queue", "dead_letter")
    assert places_of(shell, "l1") == ["low"]


def test_peek_at_empty_queues(shell: CommandLine) -> None:
    assert shell.run("peek") == "high: empty\nlow: empty\n"
    assert shell.json("peek", "--queue", "completed") == {"jobs": []}


def test_bytes_that_are_not_a_job_have_an_id(shell: CommandLine) -> None:
    shell.push("low", b"\x1b[2Jnot a job\xff")
    [job] = shell.json("peek")["jobs"]
    assert (job["id"], base64.b64decode(job["raw_b64"]), job["filesize"]) == (
        raw_id(b"\x1b[2Jnot a job\xff"),
        b"\x1b[2Jnot a job\xff",
        14,
    )
    assert "not a job" in job["error"]
    assert "\x1b" not in shell.run("peek")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("peek", "--queue", "nope"), "no queue is named 'nope'; give one of high, low, scheduled"),
        (("peek", "-n", "0"), "-n is '0'; it must be a whole number, 1 or more"),
        (("list", "--state", "odd"), "--status is 'odd'; it must be one of pending"),
        (("list", "--limit", "x"), "--limit is 'x'"),
        (("show",), "ID"),
        (("trace",), "PATH"),
        (("cancel",), "specify jobs by id, or --all"),
    ],
)
def test_a_wrong_argument_is_one_line(shell: CommandLine, words: tuple[str, ...], said: str) -> None:
    assert said in shell.fail(*words, code=2)


# list


def test_jobs_are_listed_by_state_and_by_aliases_of_states(shell: CommandLine) -> None:
    everything(shell)
    for state, ids in {
        "pending": ["h1", "l1", "l2", "l3"],
        "scheduled": ["s1"],
        "retrying": ["r1"],
        "failed": ["r1"],
        "running": ["run1"],
        "processing": ["run1"],
        "completed": ["c2", "c1"],
        "dead": ["d1"],
        "cancelled": ["x1"],
    }.items():
        jobs = shell.json("list", "--state", state)
        assert ids_of(jobs) == ids, state
        wanted = {"failed": "retrying", "processing": "running"}.get(state, state)
        assert {job["status"] for job in jobs["jobs"]} == {wanted}
    every = ["run1", "h1", "l1", "l2", "l3", "r1", "s1", "d1", "c2", "c1", "x1"]
    assert ids_of(shell.json("list")) == every
    assert ids_of(shell.json("list", "--limit", "3")) == every[:3]
    assert "run1" in shell.run("list")


def test_jobs_are_listed_by_type(shell: CommandLine) -> None:
    for i in range(3):
        for kind in ("report", "thumbnail"):
            job = typed_job(kind, {"i": i}, priority="low", now=NOW, id=f"{kind}-{i}")
            shell.broker.enqueue([Entry(job, "low")])
    assert ids_of(shell.json("list", "--type", "report")) == ["report-0", "report-1", "report-2"]
    assert ids_of(shell.json("list", "--type", "report", "--state", "pending", "--limit", "1")) == ["report-0"]
    for _ in range(4):
        settle(shell, complete(claim_one(shell)))
    assert ids_of(shell.json("list", "--type", "report", "--state", "completed")) == ["report-1", "report-0"]
    assert shell.run("list", "--type", "absent") == "no jobs match\n"
    assert shell.json("list", "--type", "absent") == {"jobs": [], "has_more": False}


# show


def test_a_job_is_shown_with_all_attempts(shell: CommandLine) -> None:
    enqueue(shell, "a")
    settle(shell, failed(claim_one(shell), error="OSError: first", delay_ms=0))
    shell.broker.promote()
    settle(shell, burial(claim_one(shell), error="ValueError: last\nwith a second line"))
    shown = shell.json("show", "a")
    assert (shown["status"], shown["attempt_count"], shown["id"]) == ("dead", 2, "a")
    assert [(a["number"], a["outcome"], a["error"], a["worker_id"]) for a in shown["attempts"]] == [
        (1, "failed", "OSError: first", "w1"),
        (2, "failed", "ValueError: last\nwith a second line", "w1"),
    ]
    out = shell.run("status", "a")
    assert "OSError: first" in out
    assert "with a second line" in out
    assert "/data/a.pdf" in out


def test_a_deferred_job_is_shown_with_its_reason(shell: CommandLine) -> None:
    settle(shell, deferred(running(shell, "a"), reason="the root /data is missing", delay_ms=60_000))
    shown = shell.json("show", "a")
    assert (shown["status"], shown["deferred"], shown["deferred_count"]) == ("deferred", "the root /data is missing", 1)
    [listed] = shell.json("list", "--state", "deferred")["jobs"]
    assert (listed["id"], listed["deferred"], listed["deferred_count"]) == ("a", "the root /data is missing", 1)
    assert "the root /data is missing" in shell.run("show", "a")


def test_deferred_jobs_have_a_state_of_their_own_and_their_reasons_are_below_the_table(shell: CommandLine) -> None:
    settle(shell, failed(running(shell, "r"), delay_ms=60_000))
    limit = "the limit of pdf is reached (max_running: 1)"
    settle(shell, deferred(running(shell, "d1"), reason=limit, delay_ms=60_000))
    assert ids_of(shell.json("list", "--state", "deferred")) == ["d1"]
    assert ids_of(shell.json("list", "--state", "retrying")) == ids_of(shell.json("list", "--state", "failed")) == ["r"]
    lines = shell.run("list", "--state", "deferred").splitlines()
    assert lines[1].split()[:2] == ["d1", "deferred"]
    assert lines[2:] == [f"deferred: {limit}"]
    settle(shell, deferred(running(shell, "d2"), reason="the root /data is missing", delay_ms=90_000))
    lines = shell.run("list").splitlines()
    assert sorted(re.split("  +", line)[:2] for line in lines[1:4]) == [
        ["d1", "deferred (1)"],
        ["d2", "deferred (2)"],
        ["r", "retrying"],
    ]
    assert lines[4:] == [f"deferred (1): {limit}", "deferred (2): the root /data is missing"]
    assert "status    deferred\n" in shell.run("show", "d1")
    assert "'deferred'; the dead-letter queue holds dead jobs only" in shell.fail(
        "dlq", "list", "--state", "deferred", code=2
    )
    assert shell.json("cancel", "--all", "--yes", "--state", "deferred")["count"] == 2


def test_a_result_is_shown(shell: CommandLine) -> None:
    settle(shell, complete(running(shell, "a"), result=b'{"pages":3}'))
    assert shell.json("show", "a")["result"] == {"pages": 3}
    assert '{"pages":3}' in shell.run("show", "a")


def test_dead_bytes_are_shown_by_their_id(shell: CommandLine) -> None:
    shell.push("low", b"not a job")
    settle(shell, burial(claim_one(shell), error="not a job: malformed"))
    shown = shell.json("show", raw_id(b"not a job"))
    assert base64.b64decode(shown["raw_b64"]) == b"not a job"
    text = shell.run("show", raw_id(b"not a job"))
    assert "malformed" in text
    [attempt] = shown["attempts"]
    assert attempt["started_at"] is None
    assert f"  1  {attempt['ended_at'][:19].replace('T', ' ')}Z  {attempt['outcome']}" in text


def test_an_unknown_id_is_one_line_and_exit_1(shell: CommandLine) -> None:
    assert "job 'absent' not found" in shell.fail("show", "absent", code=1)
    assert "job 'absent' not found" in shell.fail("show", "absent", "--json", code=1)


# trace


def version_of(shell: CommandLine, path: bytes, signature: str, id: str) -> None:
    job = file_job(path, size=1, priority="low", now=NOW, signature=signature, id=id)
    shell.broker.enqueue([Entry(job, "low", Version(path, signature))])


@pytest.mark.parametrize("name", [b"a.pdf", b"\xff\xfe not text\n.pdf", 'quo"te\\ ü.pdf'.encode()])
def test_a_file_is_traced_through_all_its_versions(shell: CommandLine, name: bytes) -> None:
    path = os.path.join(os.fsencode(shell.directory), b"in", name)
    version_of(shell, path, "4-1700000000000000000", "v1")
    settle(shell, failed(claim_one(shell), error="OSError: first", delay_ms=0))
    shell.broker.promote()
    settle(shell, complete(claim_one(shell)))
    version_of(shell, path, "5-1700000001000000000", "v2")
    settle(shell, burial(claim_one(shell), error="ValueError: broken"))
    apart = file_job(path, size=9, priority="low", now=NOW, id="apart")
    shell.broker.enqueue([Entry(apart, "low")])
    enqueue(shell, "unrelated")
    relative = os.path.join("in", os.fsdecode(name))
    shown = shell.json("trace", relative)
    assert [(v["job_id"], v["is_newest"], v["is_in_ledger"], v["size"]) for v in shown["versions"]] == [
        ("v2", True, True, 5),
        ("v1", False, True, 4),
        ("apart", False, False, None),
    ]
    attempts = shown["versions"][1]["job"]["attempts"]
    assert [(a["outcome"], a["error"], a["worker_id"]) for a in attempts] == [
        ("failed", "OSError: first", "w1"),
        ("completed", "", "w1"),
    ]
    out = shell.run("trace", os.fsdecode(path))
    for words in ("ValueError: broken", "OSError: first", "\n  dead ", "\n  completed ", "\n  pending", "on w1"):
        assert words in out


def test_a_version_whose_record_has_expired_is_still_known(shell: CommandLine) -> None:
    path = os.path.join(os.fsencode(shell.directory), b"in", b"a")
    version_of(shell, path, "4-1700000000000000000", "gone")
    settlement = burial(claim_one(shell))
    settle(shell, settlement)
    shell.broker.discard([("gone", settlement.next_raw)])
    [version] = shell.json("trace", "in/a")["versions"]
    assert (version["job_id"], version["job"]) == ("gone", None)
    assert "the record has expired (worker.history_ttl) or was deleted" in shell.run("trace", "in/a")


def test_an_unknown_file_is_one_line_and_exit_1(shell: CommandLine) -> None:
    assert "there is no such file here, and nothing is known about" in shell.fail("trace", "in/absent.pdf", code=1)
    assert "it is a directory" in shell.fail("trace", "in", code=1)


def test_the_trace_of_a_file_that_was_never_taken_names_the_reason(shell: CommandLine) -> None:
    shell.settings["producer.include_globs"] = "**/*.pdf"
    old_s = time.time() - 3600
    for name in ("A.PDF", "new.pdf", "old.pdf"):
        (shell.setup.inbox / name).touch()
    os.utime(shell.setup.inbox / "old.pdf", (old_s, old_s))
    said = shell.fail("trace", "in/A.PDF", code=1)
    assert f"'{shell.setup.inbox}/A.PDF' was never enqueued: no glob of producer.include_globs matches it" in said
    assert "'**/*.pdf' would match if case did not matter" in said
    assert "it may still be being written: it was modified " in shell.fail("trace", "in/new.pdf", code=1)
    assert "no rule excludes it: the next scan will enqueue it" in shell.fail("trace", "in/old.pdf", code=1)
    assert "it is not below producer.scan_dir" in shell.fail("trace", str(shell.directory), code=1)
    shell.settings["producer.ready_suffix"] = ".ok"
    assert "its marker 'old.pdf.ok' is missing" in shell.fail("trace", "in/old.pdf", code=1)


def test_the_trace_of_a_file_knows_the_directory_that_a_running_producer_was_given(shell: CommandLine) -> None:
    given = shell.directory / "given"
    given.mkdir()
    (given / "a.pdf").touch()
    os.utime(given / "a.pdf", (1, 1))
    assert "it is not below producer.scan_dir" in shell.fail("trace", "given/a.pdf", code=1)
    info = producer_info(host=socket.gethostname(), roots=(str(given),))
    shell.broker.report_producer("p", info, 60_000)
    assert "no rule excludes it: the next scan will enqueue it" in shell.fail("trace", "given/a.pdf", code=1)


def test_the_trace_of_a_file_that_has_changed_says_why_the_new_version_is_not_taken(shell: CommandLine) -> None:
    file, old_s = shell.setup.inbox / "a.pdf", time.time() - 3600
    file.write_bytes(b"first")
    os.utime(file, (old_s, old_s))
    version_of(shell, os.fsencode(file), f"5-{file.stat().st_mtime_ns}", "v1")
    assert shell.json("trace", "in/a.pdf")["untaken"] is None
    assert "changed since" not in shell.run("trace", "in/a.pdf")
    file.write_bytes(b"second!")
    os.utime(file, (old_s + 60, old_s + 60))
    shell.settings["producer.ready_suffix"] = ".ok"
    untaken = shell.json("trace", "in/a.pdf")["untaken"]
    assert (untaken["size"], untaken["modified_ns"]) == (7, file.stat().st_mtime_ns)
    _, changed, why, *_ = shell.run("trace", "in/a.pdf").splitlines()
    assert changed.startswith("changed since the newest known version: 7 bytes, modified 20")
    assert why == "  not enqueued: its marker 'a.pdf.ok' is missing (producer.ready_suffix)"
    file.unlink()
    assert shell.json("trace", "in/a.pdf")["untaken"] is None


# cancel


def test_a_waiting_job_leaves_its_queue_and_a_running_one_is_requested_to_stop(shell: CommandLine) -> None:
    running(shell, "run")
    enqueue(shell, "wait", "stay")
    enqueue(shell, "later", delay_ms=60_000)
    done = shell.json("cancel", "wait", "later", "run")
    assert [(r["id"], r["result"]) for r in done["results"]] == [
        ("wait", "cancelled"),
        ("later", "cancelled"),
        ("run", "requested"),
    ]
    assert (places_of(shell, "wait"), places_of(shell, "stay")) == (["cancelled"], ["low"])
    assert record_of(shell, "run").is_cancel_requested
    again = shell.json("cancel", "run")
    assert (again["count"], again["results"][0]["result"]) == (0, "requested_before"), "only the first request counts"
    assert shell.json("cancel", "run", "--dry-run")["count"] == 0
    assert "run: is already being cancelled\n" in shell.run("cancel", "run")
    assert shell.broker.census().drift == 0


def test_the_first_cancellation_of_a_running_job_says_when_it_stops(shell: CommandLine) -> None:
    running(shell, "run")
    said = shell.run("cancel", "run")
    assert "run: is running; its worker sets context.cancelled within 10s" in said
    assert said.endswith("\n1 job cancelled or being cancelled\n")


def test_a_job_that_is_named_twice_is_cancelled_once(shell: CommandLine) -> None:
    enqueue(shell, "wait")
    assert shell.run("cancel", "wait", "wait") == "wait  /data/wait.pdf\n1 job cancelled\n"


def test_a_job_that_has_ended_or_is_unknown_is_exit_1(shell: CommandLine) -> None:
    completed(shell, "done")
    enqueue(shell, "wait")
    out = shell.run("cancel", "done", "absent", "wait", code=1)
    assert "done: refused: it is already completed\n" in out
    assert "absent: unknown: no job has this id" in out
    assert "wait  /data/wait.pdf\n1 job cancelled\n" in out
    [result] = shell.json("cancel", "absent", code=1)["results"]
    assert (result["id"], result["result"], result["path"]) == ("absent", "unknown", "")


def test_a_job_that_another_program_pushed_is_unknown_by_its_id_and_can_be_cancelled(shell: CommandLine) -> None:
    shell.push("low", foreign("theirs"))
    assert ids_of(shell.json("list")) == ["theirs"]
    unclaimed = "another program pushed it and no worker has claimed it yet"
    assert unclaimed in shell.fail("show", "theirs", code=1)
    told = shell.run("cancel", "theirs", code=1)
    assert told.startswith("theirs: unknown: no job has this id, ")
    assert f"{unclaimed}; 'fileq cancel --all' also finds such jobs\n" in told
    assert "theirs" in shell.run("cancel", "--all", "--yes")
    assert shell.json("show", "theirs")["status"] == "cancelled"


def test_cancelling_a_lost_job_advises_fsck(shell: CommandLine) -> None:
    enqueue(shell, "a")
    if shell.broker.kind == "redis":
        assert shell.server_client().delete("jobqueue:low_priority") == 1
    else:
        shell.execute("DELETE FROM queued")
    assert "is pending according to its record, but was not found; run 'fileq fsck'" in shell.run("cancel", "a", code=1)


def test_names_from_outside_cannot_move_the_cursor(shell: CommandLine) -> None:
    path = "/data/\x1b[31mred\n\x9b2J\u2028.pdf"
    shell.broker.enqueue([Entry(a_job("a", filepath=path), "low")])
    shell.push("low", foreign("b\x1b[2J"))
    for command in (("peek",), ("list",), ("show", "a")):
        out = shell.run(*command)
        assert not {"\x1b", "\x9b", "\u2028"} & set(out)
        assert "\\x1b[31mred\\n\\x9b2J\\u2028.pdf" in out
    assert json.loads(shell.run("peek", "--json"))["jobs"][0]["path"] == path


def test_a_listed_job_names_the_queue_that_holds_it(shell: CommandLine) -> None:
    shell.broker.enqueue([an_entry("z", queue="high")])
    assert [job["queue"] for job in shell.json("list", "--state", "pending")["jobs"]] == ["high"]


def test_list_says_that_there_are_more_jobs(shell: CommandLine) -> None:
    enqueue(shell, "a", "b", "c")
    assert shell.run("list", "--limit", "2").endswith("\n\nthe first 2 jobs; --limit shows more\n")
    assert "--limit" not in shell.run("list", "--limit", "3")
    assert len(shell.json("list", "--limit", "2")["jobs"]) == 2


def test_nothing_to_cancel_needs_no_confirmation(shell: CommandLine) -> None:
    assert shell.run("cancel", "--all") == "no jobs match\n"
    assert shell.run("cancel", "--all", "--yes") == "no jobs match\n"
    assert shell.json("cancel", "--all")["count"] == 0


def test_a_retry_of_all_without_a_match_says_so(shell: CommandLine) -> None:
    dead(shell, "a")
    assert shell.run("dlq", "retry", "--all", "--error", "other", "--dry-run") == "no jobs match\n"
    assert shell.run("dlq", "retry", "--all", "--error", "other") == "no jobs match\n"
    assert shell.run("dlq", "delete", "--all", "--error", "other", "--dry-run") == "no jobs match\n"
