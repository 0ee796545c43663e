"""`fileq admin peek|list|show|trace|cancel`, on both brokers."""

from __future__ import annotations

import base64
import json
import os
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
    enqueue,
    failed,
    foreign,
    places_of,
    record_of,
    running,
    settle,
)
from tests.support.command_line import Desk

NOW = datetime.now(UTC)


def ids_of(answer: dict[str, list[dict[str, str]]]) -> list[str]:
    return [job["id"] for job in answer["jobs"]]


def everything(desk: Desk) -> None:
    completed(desk, "c1", "c2")
    dead(desk, "d1")
    settle(desk, failed(running(desk, "r1"), delay_ms=60_000))
    enqueue(desk, "x1")
    desk.broker.cancel(["x1"])
    running(desk, "run1", "w2")
    enqueue(desk, "s1", delay_ms=90_000)
    enqueue(desk, "l1", "l2", "l3")
    enqueue(desk, "h1", queue="high")


# peek


def test_peek_shows_the_next_out_of_each_queue_and_moves_nothing(desk: Desk) -> None:
    everything(desk)
    assert ids_of(desk.json("admin", "peek")) == ["h1", "l1", "l2", "l3"]
    assert ids_of(desk.json("peek", "--queue", "low", "-n", "2")) == ["l1", "l2"]
    for place, ids in {
        "scheduled": ["r1", "s1"],
        "dead_letter": ["d1"],
        "dlq": ["d1"],
        "completed": ["c2", "c1"],
        "cancelled": ["x1"],
    }.items():
        assert ids_of(desk.json("peek", "--queue", place)) == ids
    out = desk.run("peek")
    assert "high: the next 1" in out
    assert "/data/l3.pdf" in out
    assert " in 1m" in desk.run("peek", "--queue", "scheduled")
    assert "dead_letter: the newest 1" in desk.run("peek", "--queue", "dead_letter")
    assert places_of(desk, "l1") == ["low"]


def test_peek_at_nothing(desk: Desk) -> None:
    assert desk.run("peek") == "high: empty\nlow: empty\n"
    assert desk.json("peek", "--queue", "completed") == {"jobs": []}


def test_bytes_that_are_no_job_are_shown_under_an_id(desk: Desk) -> None:
    desk.push("low", b"\x1b[2Jnot a job\xff")
    [job] = desk.json("peek")["jobs"]
    assert (job["id"], job["is_job"], job["filesize"]) == (raw_id(b"\x1b[2Jnot a job\xff"), False, 14)
    assert "not a job" in job["error"]
    assert "\x1b" not in desk.run("peek")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("peek", "--queue", "nope"), "no queue is called 'nope'; there are high, low, scheduled"),
        (("peek", "-n", "0"), "-n is '0'; it must be a whole number, 1 or more"),
        (("list", "--state", "odd"), "--state is 'odd'; it must be one of pending"),
        (("list", "--limit", "x"), "--limit is 'x'"),
        (("show",), "ID"),
        (("trace",), "PATH"),
        (("cancel",), "ID"),
    ],
)
def test_a_wrong_argument_is_one_line(desk: Desk, words: tuple[str, ...], said: str) -> None:
    assert said in desk.fail(*words, code=2)


# list


def test_jobs_are_listed_by_state_and_by_the_words_people_use(desk: Desk) -> None:
    everything(desk)
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
        jobs = desk.json("list", "--state", state)
        assert ids_of(jobs) == ids, state
        wanted = {"failed": "retrying", "processing": "running"}.get(state, state)
        assert {job["state"] for job in jobs["jobs"]} == {wanted}
    every = ["run1", "h1", "l1", "l2", "l3", "r1", "s1", "d1", "c2", "c1", "x1"]
    assert ids_of(desk.json("list")) == every
    assert ids_of(desk.json("list", "--limit", "3")) == every[:3]
    assert "run1" in desk.run("list")


def test_jobs_are_listed_by_type(desk: Desk) -> None:
    for i in range(3):
        for kind in ("report", "thumbnail"):
            job = typed_job(kind, {"i": i}, priority="low", now=NOW, id=f"{kind}-{i}")
            desk.broker.enqueue([Entry(job, "low")])
    assert ids_of(desk.json("list", "--type", "report")) == ["report-0", "report-1", "report-2"]
    assert ids_of(desk.json("list", "--type", "report", "--state", "pending", "--limit", "1")) == ["report-0"]
    for _ in range(4):
        settle(desk, complete(claim_one(desk)))
    assert ids_of(desk.json("list", "--type", "report", "--state", "completed")) == ["report-1", "report-0"]
    assert desk.run("list", "--type", "nobody") == "no such jobs\n"
    assert desk.json("list", "--type", "nobody") == {"jobs": []}


# show


def test_the_whole_history_of_a_job_is_shown(desk: Desk) -> None:
    enqueue(desk, "a")
    settle(desk, failed(claim_one(desk), error="OSError: first", delay_ms=0))
    desk.broker.promote()
    settle(desk, burial(claim_one(desk), error="ValueError: last\nwith a second line"))
    told = desk.json("show", "a")
    assert (told["job"]["state"], told["job"]["attempts"], told["json"]["id"]) == ("dead", 2, "a")
    assert [(a["number"], a["outcome"], a["error"], a["worker"]) for a in told["attempts"]] == [
        (1, "failed", "OSError: first", "w1"),
        (2, "failed", "ValueError: last\nwith a second line", "w1"),
    ]
    out = desk.run("status", "a")
    assert "OSError: first" in out
    assert "with a second line" in out
    assert "/data/a.pdf" in out


def test_a_result_is_shown(desk: Desk) -> None:
    settle(desk, complete(running(desk, "a"), result=b'{"pages":3}'))
    assert desk.json("show", "a")["result"] == {"pages": 3}
    assert '{"pages":3}' in desk.run("show", "a")


def test_dead_bytes_are_shown_by_their_id(desk: Desk) -> None:
    desk.push("low", b"not a job")
    settle(desk, burial(claim_one(desk), error="not a job: malformed"))
    told = desk.json("show", raw_id(b"not a job"))
    assert base64.b64decode(told["raw_b64"]) == b"not a job"
    assert told["json"] is None
    assert "malformed" in desk.run("show", raw_id(b"not a job"))


def test_an_unknown_id_is_one_line_and_exit_1(desk: Desk) -> None:
    assert "no job 'nobody' is known" in desk.fail("show", "nobody", code=1)
    assert "no job 'nobody' is known" in desk.fail("show", "nobody", "--json", code=1)


# trace


def version_of(desk: Desk, path: bytes, signature: str, id: str) -> None:
    job = file_job(path, size=1, priority="low", now=NOW, signature=signature, id=id)
    desk.broker.enqueue([Entry(job, "low", Version(path, signature))])


@pytest.mark.parametrize("name", [b"a.pdf", b"\xff\xfe not text\n.pdf", 'quo"te\\ ü.pdf'.encode()])
def test_a_file_is_traced_through_all_its_versions(desk: Desk, name: bytes) -> None:
    path = os.path.join(os.fsencode(desk.directory), b"in", name)
    version_of(desk, path, "4-1700000000000000000", "v1")
    settle(desk, failed(claim_one(desk), error="OSError: first", delay_ms=0))
    desk.broker.promote()
    settle(desk, complete(claim_one(desk)))
    version_of(desk, path, "5-1700000001000000000", "v2")
    settle(desk, burial(claim_one(desk), error="ValueError: broken"))
    apart = file_job(path, size=9, priority="low", now=NOW, id="apart")
    desk.broker.enqueue([Entry(apart, "low")])
    enqueue(desk, "unrelated")
    relative = os.path.join("in", os.fsdecode(name))
    told = desk.json("trace", relative)
    assert [(v["job_id"], v["is_newest"], v["is_in_ledger"], v["size"]) for v in told["versions"]] == [
        ("v2", True, True, 5),
        ("v1", False, True, 4),
        ("apart", False, False, None),
    ]
    attempts = told["versions"][1]["job"]["attempts"]
    assert [(a["outcome"], a["error"], a["worker"]) for a in attempts] == [
        ("failed", "OSError: first", "w1"),
        ("completed", "", "w1"),
    ]
    out = desk.run("trace", os.fsdecode(path))
    for words in ("ValueError: broken", "OSError: first", "now dead", "now completed", "now pending", "on w1"):
        assert words in out


def test_a_version_whose_record_has_expired_is_still_known(desk: Desk) -> None:
    path = os.path.join(os.fsencode(desk.directory), b"in", b"a")
    version_of(desk, path, "4-1700000000000000000", "gone")
    settlement = burial(claim_one(desk))
    settle(desk, settlement)
    desk.broker.discard([("gone", settlement.next_raw)])
    [version] = desk.json("trace", "in/a")["versions"]
    assert (version["job_id"], version["job"]) == ("gone", None)
    assert "its history has expired" in desk.run("trace", "in/a")


def test_a_file_nobody_knows_is_one_line_and_exit_1(desk: Desk) -> None:
    assert "nothing is known of" in desk.fail("trace", "in/nobody.pdf", code=1)


# cancel


def test_a_waiting_job_leaves_its_queue_and_a_running_one_is_asked_to_end(desk: Desk) -> None:
    running(desk, "run")
    enqueue(desk, "wait", "stay")
    enqueue(desk, "later", delay_ms=60_000)
    done = desk.json("cancel", "wait", "later", "run")
    assert [(r["id"], r["result"], r["state"]) for r in done["results"]] == [
        ("wait", "cancelled", "cancelled"),
        ("later", "cancelled", "cancelled"),
        ("run", "requested", "running"),
    ]
    assert (places_of(desk, "wait"), places_of(desk, "stay")) == (["cancelled"], ["low"])
    assert record_of(desk, "run").is_cancel_requested
    assert "is running; its worker ends it within 10 s" in desk.run("cancel", "run")
    assert desk.broker.census().drift == 0


def test_a_job_that_has_ended_or_that_nobody_knows_is_exit_1(desk: Desk) -> None:
    completed(desk, "done")
    enqueue(desk, "wait")
    out = desk.run("cancel", "done", "nobody", "wait", code=1)
    assert "done: is completed already" in out
    assert "nobody: no such job" in out
    assert "wait: cancelled" in out
    answer = desk.json("cancel", "nobody", code=1)
    assert answer["results"] == [{"id": "nobody", "result": "unknown", "state": None}]


def test_a_job_that_is_not_where_its_record_says_is_a_case_for_fsck(desk: Desk) -> None:
    enqueue(desk, "a")
    if desk.broker.kind == "redis":
        assert desk.server_client().delete("jobqueue:low_priority") == 1
    else:
        desk.execute("DELETE FROM queued")
    assert "is pending by its record, and not there; see 'fileq fsck'" in desk.run("cancel", "a", code=1)


def test_names_from_outside_cannot_move_the_cursor(desk: Desk) -> None:
    desk.broker.enqueue([Entry(a_job("a", filepath="/data/\x1b[31mred\n.pdf"), "low")])
    desk.push("low", foreign("b\x1b[2J"))
    out = desk.run("peek") + desk.run("list") + desk.run("show", "a")
    assert "\x1b" not in out
    assert "\\x1b[31mred\\n.pdf" in out
    assert json.loads(desk.run("peek", "--json"))["jobs"][0]["filepath"] == "/data/\x1b[31mred\n.pdf"


def test_an_entry_is_found_wherever_it_was_put(desk: Desk) -> None:
    desk.broker.enqueue([an_entry("z", queue="high")])
    assert [job["queue"] for job in desk.json("list", "--state", "pending")["jobs"]] == ["high"]
