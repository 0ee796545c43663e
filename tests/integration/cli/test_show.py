"""What `fileq show` says of one job, on both brokers."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from fileq.brokers.types import Entry
from fileq.core.job import Version, file_job
from fileq.core.settlement import complete, release
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    deferred,
    enqueue,
    failed,
    register,
    running,
    settle,
)
from tests.support.command_line import CommandLine


def facts(shell: CommandLine, id: str) -> dict[str, str]:
    """The lines of the first table of `fileq show`, by their names. A line without a name belongs to the one before."""
    found: dict[str, str] = {}
    name = ""
    for line in shell.run("show", id).partition("\n\n")[0].splitlines():
        key, _, value = line.partition("  ")
        name = key or name
        found[name] = f"{found[name]}\n{value.strip()}" if name in found else value.strip()
    return found


def test_an_attempt_has_the_duration_that_its_worker_logged(shell: CommandLine) -> None:
    settle(shell, complete(running(shell, "a"), duration_ms=1234))
    assert shell.json("show", "a")["attempts"][0]["duration_s"] == 1.234
    assert "completed after 1.2s" in shell.run("show", "a")


def test_an_attempt_that_was_released_says_why(shell: CommandLine) -> None:
    settle(shell, release(running(shell, "a"), duration_ms=1234))
    settle(shell, release(claim_one(shell)))
    interrupted, given_back = (attempt["reason"] for attempt in shell.json("show", "a")["attempts"])
    assert interrupted == "interrupted: its worker was stopping"
    assert given_back == "not started: its worker was stopping, or had claimed it in advance"
    for text in (shell.run("show", "a"), shell.run("trace", "/data/a.pdf")):
        assert [text.count(interrupted), text.count(given_back)] == [1, 1]
    assert "error" not in facts(shell, "a"), "nothing failed"


# why a waiting job does not run


def test_a_pending_job_says_that_its_queue_is_paused_and_that_no_worker_is_running(shell: CommandLine) -> None:
    enqueue(shell, "a")
    assert facts(shell, "a")["waits"] == "no worker is running"
    shell.broker.pause("low")
    assert facts(shell, "a")["waits"] == "queue low is paused; 'fileq resume low' resumes it\nno worker is running"
    register(shell, "w1")
    [reason] = shell.json("show", "a")["waits_for"]
    assert reason == facts(shell, "a")["waits"] == "queue low is paused; 'fileq resume low' resumes it"
    assert "  waits: queue low is paused" in shell.run("trace", "/data/a.pdf")
    shell.broker.resume("low")
    assert "waits" not in facts(shell, "a")


def test_a_pending_job_says_that_all_slots_are_busy(shell: CommandLine) -> None:
    running(shell, "first")
    enqueue(shell, "a")
    assert facts(shell, "a")["waits"] == "all slots are busy (1 job running)"
    assert "waits" not in facts(shell, "first")


def test_a_job_that_waits_for_a_time_says_when_and_why(shell: CommandLine) -> None:
    settle(shell, failed(running(shell, "failed"), delay_ms=60_000))
    settle(shell, deferred(running(shell, "deferred"), reason="the root /data is missing", delay_ms=60_000))
    enqueue(shell, "later", delay_ms=60_000)
    reasons = {
        "failed": "the last attempt failed",
        "deferred": "the root /data is missing",
        "later": "scheduled for then",
    }
    for id, reason in reasons.items():
        assert re.fullmatch(rf"until 2[0-9-]+ [0-9:]+Z \(in (59s|1m00s)\): {reason}", facts(shell, id)["waits"])
    assert re.fullmatch(r"1 time: [-0-9: ]+Z \(\d+s ago\)", facts(shell, "deferred")["deferred"])


def test_the_deadline_of_a_job_is_shown(shell: CommandLine) -> None:
    enqueue(shell, "without")
    shell.broker.enqueue([Entry(a_job("with", deadline="2199-01-02T03:04:05Z"), "low")])
    assert facts(shell, "with")["deadline"].startswith("2199-01-02 03:04:05Z (in ")
    assert "deadline" not in facts(shell, "without")


# counters


def test_failed_attempts_are_called_so_and_not_retries(shell: CommandLine) -> None:
    enqueue(shell, "a")
    for _ in range(2):
        settle(shell, failed(claim_one(shell), delay_ms=0))
        shell.broker.promote()
    shown = facts(shell, "a")
    assert "retries" not in shown
    assert shown["failed attempts"] == str(shell.json("show", "a")["retry_count"]) == "2"
    settle(shell, burial(claim_one(shell)))
    shell.run("dlq", "retry", "a")
    assert facts(shell, "a")["failed attempts"] == "0 since the manual retry"


def test_a_job_without_a_failure_says_nothing_of_failures(shell: CommandLine) -> None:
    settle(shell, complete(running(shell, "a")))
    assert not {"retries", "failed attempts"} & set(facts(shell, "a"))


def test_versions_that_differ_by_their_inode_are_shown_with_it(shell: CommandLine) -> None:
    path, short = b"/srv/a.txt", "4-1700000000000000000"
    for id, inode in {"first": 11, "second": 12}.items():
        job = file_job(path, size=4, priority="low", now=datetime.now(UTC), signature=short, inode=inode, id=id)
        shell.broker.enqueue([Entry(job, "low", Version(path, f"{short}-i{inode}"))])
        assert facts(shell, id)["version"] == f"{short}-i{inode}"
    by_content = Version(path, f"{short}-c{'ab' * 16}")
    job = file_job(path, size=4, priority="low", now=datetime.now(UTC), signature=short, id="third")
    shell.broker.enqueue([Entry(job, "low", by_content, always=True)])
    traced = shell.run("trace", "/srv/a.txt")
    assert facts(shell, "third")["version"] == short
    for mark in (", inode 11\n", ", inode 12\n", ", content abababababab\n"):
        assert mark in traced


def test_an_error_that_repeats_is_printed_once(shell: CommandLine) -> None:
    enqueue(shell, "a")
    for error in ("ValueError: one", "ValueError: two", "ValueError: two", "ValueError: two"):
        settle(shell, failed(claim_one(shell), error=error, delay_ms=0, duration_ms=5))
        shell.broker.promote()
    shown = shell.run("show", "a")
    assert shown.count("ValueError: one") == 1
    assert shown.count("ValueError: two") == 1  # as the error of the job, above its attempts
    assert shown.count("failed after") == 4
    assert shown.count("failed after 5ms, same error") == 2
    traced = shell.run("trace", "/data/a.pdf")
    assert traced.count("ValueError: two") == 1
    assert traced.index("ValueError: two") < traced.index("same error"), "the first attempt prints it"
