"""The same filters choose jobs for `list`, `dlq list|retry|delete`, `cancel` and `reprocess`, on both brokers."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from fileq.brokers.types import Entry
from fileq.commands.audit_entries import audit_page
from fileq.core.job import Version, encoded_tags, file_job, rfc3339_ms, typed_job
from fileq.core.settlement import Settlement, complete
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    dead,
    enqueue,
    failed,
    foreign,
    ids_in,
    names,
    record_of,
    running,
    settle,
)
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

NOW = datetime.now(UTC)
OLD = "2026-06-01"  # after the creation time of foreign jobs, before every test


def ids_of(report: dict[str, list[dict[str, str]]]) -> list[str]:
    return sorted(job["id"] for job in report["jobs"])


def add_waiting(shell: CommandLine) -> None:
    """Jobs that have not ended, of two queues, two types and two times."""
    shell.broker.enqueue([Entry(a_job("pdf", filepath="/srv/a/x.pdf"), "low")])
    shell.broker.enqueue([Entry(a_job("txt", filepath="/srv/b/x.txt", priority="high"), "high")])
    report = typed_job("report", None, priority="low", now=NOW, id="typed")
    shell.broker.enqueue([Entry(report.but(tags=encoded_tags({"tenant": "acme", "n": "1"})), "low")])
    enqueue(shell, "later", delay_ms=600_000)
    shell.push("low", foreign("old"))
    shell.run("schedule", "add", "nightly", "@daily", "--type", "report", "-q")


WAITING = {
    ("--match", "*.pdf"): ["later", "old", "pdf"],
    ("--match", "/srv/**"): ["pdf", "txt"],
    ("--match", "*.PDF"): [],
    ("--type", "report"): ["typed"],
    ("--queue", "high"): ["txt"],
    ("--queue", "low", "--match", "*.pdf"): ["later", "old", "pdf"],
    ("--state", "scheduled"): ["later"],
    ("--state", "pending", "--match", "/srv/a/*"): ["pdf"],
    ("--until", OLD): ["old"],
    ("--since", OLD, "--queue", "low"): ["later", "pdf", "typed"],
    ("--error", "anything"): [],
    ("--priority", "high"): ["txt"],
    ("--tag", "tenant=acme"): ["typed"],
    ("--tag", "tenant=acme", "--tag", "n=2"): [],
    ("--q", "SRV/A"): ["pdf"],
    ("--schedule", "nightly"): [],
}


@pytest.mark.parametrize("words", WAITING, ids=" ".join)
def test_waiting_jobs_are_listed_and_cancelled_by_the_same_filters(shell: CommandLine, words: tuple[str, ...]) -> None:
    add_waiting(shell)
    chosen = WAITING[words]
    assert ids_of(shell.json("list", *words)) == chosen
    planned = shell.json("cancel", "--all", "--dry-run", *words)
    assert sorted(r["id"] for r in planned["results"]) == chosen
    assert {r["result"] for r in planned["results"]} <= {"would_cancel"}
    assert (planned["count"], planned["is_dry_run"]) == (len(chosen), True)
    assert ids_in(shell, "cancelled") == []
    done = shell.json("cancel", "--all", "--yes", *words)
    assert (done["count"], done["is_dry_run"]) == (len(chosen), False)
    assert sorted(ids_in(shell, "cancelled")) == chosen
    assert shell.json("cancel", "--all", "--yes", *words)["count"] == 0


def test_running_jobs_are_cancelled_by_filters_too(shell: CommandLine) -> None:
    running(shell, "run")
    assert shell.json("cancel", "--all", "--yes", "--state", "running")["results"] == [
        {"id": "run", "result": "requested", "path": "/data/run.pdf", "reason": ""}
    ]
    assert record_of(shell, "run").is_cancel_requested


def test_retrying_jobs_are_found_by_their_error(shell: CommandLine) -> None:
    settle(shell, failed(running(shell, "a"), error="OSError: Disk Full", delay_ms=600_000))
    settle(shell, failed(running(shell, "b"), error="ValueError: page", delay_ms=600_000))
    assert ids_of(shell.json("list", "--error", "disk full")) == ["a"]
    assert ids_of(shell.json("list", "--state", "failed", "--error", "valueerror")) == ["b"]
    assert shell.json("cancel", "--all", "--yes", "--error", "OSError")["count"] == 1
    assert ids_in(shell, "cancelled") == ["a"]


def test_more_than_one_batch_is_cancelled_and_a_limit_holds(shell: CommandLine) -> None:
    enqueue(shell, *names(1100))
    assert shell.json("cancel", "--all", "--yes", "--limit", "3")["count"] == 3
    assert sorted(ids_in(shell, "cancelled")) == names(3)
    report = shell.json("cancel", "--all", "--yes")
    assert (report["count"], len(report["results"])) == (1097, 1000)
    assert ids_in(shell, "low") == []
    assert shell.broker.census().drift == 0


def test_cancelling_by_filters_needs_a_confirmation(shell: CommandLine) -> None:
    enqueue(shell, "a")
    assert "cancel --all would cancel 1 job; add --yes to confirm" in shell.fail("cancel", "--all", code=2)
    assert ids_in(shell, "low") == ["a"]
    assert shell.run("cancel", "--all", "--dry-run") == ("would cancel a  /data/a.pdf\n1 job would be cancelled\n")
    assert shell.run("cancel", "--all", "--force") == "a  /data/a.pdf\n1 job cancelled\n"


# dead jobs


def bury(shell: CommandLine, id: str, error: str, *, path: str = "", queue: str = "low") -> Settlement:
    shell.broker.enqueue([Entry(a_job(id, filepath=path or f"/data/{id}.pdf", priority=queue), queue)])
    settlement = burial(claim_one(shell), error=error)
    settle(shell, settlement)
    return settlement


def add_dead(shell: CommandLine) -> str:
    """Dead jobs of two times, two queues and several kinds; returns the time between the first and the others."""
    bury(shell, "slow", "timed out after 5m")
    ended_ms = record_of(shell, "slow").ended_ms
    wait_until(lambda: shell.broker.census().now_ms > ended_ms + 1)
    bury(shell, "gone", "file vanished", path="/srv/deep/er/gone.txt", queue="high")
    bury(shell, "tool", "pdftotext exited with 3: broken")
    bury(shell, "other", "pdftotext exited with 30: broken")
    job = typed_job("report", None, priority="low", now=NOW, id="typed")
    shell.broker.enqueue([Entry(job, "low")])
    settle(shell, burial(claim_one(shell), error="ConnectionError: refused"))
    return rfc3339_ms(ended_ms)


DEAD = {
    ("--error", "Timeout"): ["slow"],
    ("--error", "timed OUT"): ["slow"],
    ("--error", "FileVanished"): ["gone"],
    ("--error", "exit 3"): ["tool"],
    ("--error", "connectionerror"): ["typed"],
    ("--type", "report"): ["typed"],
    ("--queue", "high"): ["gone"],
    ("--match", "*.txt"): ["gone"],
    ("--state", "dead", "--match", "/data/*"): ["other", "slow", "tool"],
    ("--until", "{time}"): ["slow"],
    ("--since", "1h", "--error", "broken"): ["other", "tool"],
    ("--until", "1h"): [],
}


@pytest.mark.parametrize("pattern", DEAD, ids=" ".join)
@pytest.mark.parametrize(
    ("verb", "would", "yes"), [("retry", "would_retry", ()), ("delete", "would_delete", ("--yes",))]
)
def test_dead_jobs_are_listed_retried_and_deleted_by_the_same_filters(
    shell: CommandLine, pattern: tuple[str, ...], verb: str, would: str, yes: tuple[str, ...]
) -> None:
    time = add_dead(shell)
    words = tuple(word.format(time=time) for word in pattern)
    chosen = DEAD[pattern]
    assert ids_of(shell.json("dlq", "list", *words)) == chosen
    assert ids_of(shell.json("list", "--state", "dead", *words[2 * (words[0] == "--state") :])) == chosen
    planned = shell.json("dlq", verb, "--all", "--dry-run", *words)
    assert sorted((r["id"], r["result"]) for r in planned["results"]) == [(id, would) for id in chosen]
    assert (planned["count"], planned["is_dry_run"], len(ids_in(shell, "dead_letter"))) == (len(chosen), True, 5)
    done = shell.json("dlq", verb, "--all", *yes, *words)
    assert (done["count"], done["is_dry_run"]) == (len(chosen), False)
    assert len(ids_in(shell, "dead_letter")) == 5 - len(chosen)
    assert ids_of(shell.json("dlq", "list", *words)) == []
    assert shell.broker.census().drift == 0


def test_a_limit_takes_the_oldest_dead_jobs(shell: CommandLine) -> None:
    add_dead(shell)
    assert shell.json("dlq", "retry", "--all", "--limit", "1")["count"] == 1
    assert ids_in(shell, "low") == ["slow"]
    assert shell.json("dlq", "delete", "--all", "--limit", "2", "--yes")["count"] == 2
    assert sorted(ids_in(shell, "dead_letter")) == ["other", "typed"]


def test_a_dry_run_names_what_it_would_do(shell: CommandLine) -> None:
    dead(shell, "a")
    assert shell.run("dlq", "retry", "a", "--dry-run") == "would retry a  /data/a.pdf\n1 job would be retried\n"
    assert shell.run("dlq", "delete", "a", "--dry-run") == "would delete a  /data/a.pdf\n1 job would be deleted\n"
    assert shell.json("dlq", "retry", "a", "--dry-run")["results"][0]["result"] == "would_retry"
    assert shell.run("dlq", "retry", "a") == "a  /data/a.pdf\n1 job retried\n"


def test_deleting_by_filters_needs_a_confirmation(shell: CommandLine) -> None:
    dead(shell, "a")
    assert "would delete 1 dead job; add --yes to confirm" in shell.fail("dlq", "delete", "--all", code=2)
    assert ids_in(shell, "dead_letter") == ["a"]


# reprocess


def add_files(shell: CommandLine) -> None:
    for name, error in (("one.txt", ""), ("two.txt", "timed out after 5m"), ("three.pdf", "")):
        path = shell.directory / "in" / name
        path.write_bytes(b"four")
        signature = f"4-{path.stat().st_mtime_ns}"
        queue = "high" if name.endswith(".pdf") else "low"
        job = file_job(bytes(path), size=4, priority=queue, now=NOW, signature=signature)
        shell.broker.enqueue([Entry(job, queue, Version(bytes(path), signature))])
        claim = claim_one(shell)
        settle(shell, burial(claim, error=error) if error else complete(claim))


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("--state", "dead"), ["two.txt"]),
        (("--state", "completed"), ["one.txt", "three.pdf"]),
        (("--error", "Timeout"), ["two.txt"]),
        (("--queue", "high"), ["three.pdf"]),
        (("--type", "report"), []),
        (("--until", "1h"), []),
        (("--since", "1h", "--match", "*.txt"), ["one.txt", "two.txt"]),
    ],
)
def test_files_are_enqueued_again_by_the_same_filters(
    shell: CommandLine, words: tuple[str, ...], files: list[str]
) -> None:
    add_files(shell)
    planned = shell.json("reprocess", "--dry-run", *words)
    assert sorted(file["path"].rpartition("/")[2] for file in planned["files"]) == sorted(files)
    assert {file["result"] for file in planned["files"]} <= {"would_enqueue"}
    assert planned["enqueued"] == len(files)
    out = shell.run("reprocess", "--dry-run", *words)
    assert all(f"would enqueue {shell.directory}/in/{name}\n" in out for name in files)
    assert shell.json("reprocess", *words)["enqueued"] == len(files)


def test_a_limit_bounds_the_files_that_are_enqueued_again(shell: CommandLine) -> None:
    add_files(shell)
    assert shell.json("reprocess", "--limit", "2")["enqueued"] == 2
    assert shell.json("reprocess", "--limit", "2")["enqueued"] == 1


def test_the_audit_has_how_many_files_were_enqueued_again_and_which(shell: CommandLine) -> None:
    add_files(shell)
    for words in (("--all", "--dry-run"), ("--match", "*.gif"), ("--match", "*.txt", "--since", "1h"), ("--all",)):
        shell.run("reprocess", *words)
    every, some = audit_page(shell.broker, 5)[0]
    assert (some.action, some.target, some.count) == ("reprocess_files", "/files/reprocess", 2)
    assert re.fullmatch(r"match: \*\.txt, since: [-\dT:.]+Z", some.detail)
    assert (every.count, every.detail) == (1, "all")


@pytest.mark.parametrize(
    "words", [("list",), ("dlq", "list"), ("dlq", "retry", "--all"), ("cancel", "--all"), ("reprocess",)]
)
def test_a_wrong_filter_is_one_line_for_every_command(shell: CommandLine, words: tuple[str, ...]) -> None:
    assert "no queue is named 'nope'; the queues are high, low" in shell.fail(*words, "--queue", "nope", code=2)
    assert "--since is 'soon'" in shell.fail(*words, "--since", "soon", code=2)
    assert "since is later than until" in shell.fail(*words, "--since", "1h", "--until", "2h", code=2)
    assert "--match is empty" in shell.fail(*words, "--match", "", code=2)


def test_a_state_that_the_command_cannot_have_is_refused(shell: CommandLine) -> None:
    assert "fileq: status is 'pending'; the dead-letter queue holds dead jobs only" in shell.fail(
        "dlq", "list", "--state", "pending", code=2
    )
    assert "only unfinished jobs can be cancelled" in shell.fail("cancel", "--all", "--yes", "--state", "dead", code=2)
