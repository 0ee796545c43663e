"""Commands say what to do next: which other command has the answer, and what they could not check."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime

import pytest

from fileq.brokers.types import Entry, OpenBreaker
from fileq.core.job import Version, file_job
from fileq.testing.conformance.builders import burial, claim_one, dead, deferred, enqueue, running, settle, worker_info
from tests.support.command_line import CommandLine


def push_file(shell: CommandLine, path: str, id: str) -> None:
    """A dead job that another program made."""
    job = file_job(path.encode(), size=1, priority="low", now=datetime.now(UTC), id=id)
    shell.broker.enqueue([Entry(job, "low", always=True)])
    settle(shell, burial(claim_one(shell), error="NoHandler"))


def bury_file(shell: CommandLine, name: str, id: str, moved_to: str = "", **options: str) -> str:
    """A dead job of this file in the inbox; a worker moved the file to `moved_to`. Returns the path of the file."""
    path = os.fsencode(shell.setup.inbox / name)
    job = file_job(path, size=1, priority="low", now=datetime.now(UTC), signature="1-1700000000000000000", id=id)
    shell.broker.enqueue([Entry(job, "low", Version(path, "1-1700000000000000000"), always=True)])
    settle(shell, burial(claim_one(shell), error="ValueError: broken", **options))
    if moved_to:
        shell.broker.finish_orders([(id, os.fsencode(moved_to))])
    return os.fsdecode(path)


def test_cancel_says_when_a_handler_is_stopped_by_force(shell: CommandLine) -> None:
    running(shell, "run")
    said = shell.run("cancel", "run")
    assert "its worker sets context.cancelled within 10s" in said
    assert "kills it 5s later" in said


def test_stats_count_the_jobs_that_wait_for_a_time_or_a_limit(shell: CommandLine) -> None:
    enqueue(shell, "later", delay_ms=60_000)
    settle(shell, deferred(running(shell, "limited"), delay_ms=60_000))
    assert "No jobs pending; 2 scheduled, retrying or deferred." in shell.run("stats")
    enqueue(shell, "now")
    assert "1 job left; none completed recently; 2 scheduled, retrying or deferred." in shell.run("stats")


def test_a_reset_says_that_the_name_of_the_route_was_not_checked(shell: CommandLine) -> None:
    assert "the name 'nosuchroute' could not be checked" in shell.run("breaker", "reset", "nosuchroute")
    assert "could not be checked" not in shell.run("breaker", "reset")


def test_a_reset_without_an_open_breaker_says_so(shell: CommandLine) -> None:
    shell.settings["handlers"] = "[{match: '**/*.pdf', use: fileq.handlers:checksum}]"
    said = shell.run("breaker", "reset", "**/*.pdf")
    assert said == "no worker reports an open breaker of **/*.pdf; any that just opened closes within 10s\n"
    assert shell.run("breaker", "reset").startswith("no worker reports an open breaker; any that")


def test_a_reset_of_a_misspelt_route_is_an_error(shell: CommandLine) -> None:
    is_open = OpenBreaker("always", "open", "ValueError: broken")
    shell.broker.register({"a": worker_info(breaker="open", breakers=(is_open,))})
    assert "did you mean 'always'?" in shell.fail("breaker", "reset", "alway", code=2)
    lines = shell.run("breaker", "reset", "always").splitlines()
    assert lines == [
        "workers close the breakers of always within 10s:",
        "alpha 4242: always is open; last error: ValueError: broken",
    ]
    shell.settings["handlers"] = "[{match: '**/*.pdf', use: fileq.handlers:checksum}]"
    assert "did you mean '**/*.pdf'?" in shell.fail("breaker", "reset", "*/*.pdf", code=2)
    assert "the routes are 'always', '**/*.pdf'" in shell.fail("breaker", "reset", "nosuchroute", code=2)
    said = shell.run("breaker", "reset", "**/*.pdf")
    assert "could not be checked" not in said
    assert said.splitlines()[-1], "no empty line at the end"
    shell.settings["imports"] = "[app]"
    assert "could not be checked" in shell.run("breaker", "reset", "nosuchroute"), "it may be a decorated handler's"


@pytest.mark.parametrize(
    ("words", "code", "advice"),
    [
        (("show", "4e0"), 2, "give at least 4 characters of the id"),
        (("show", "in/a.pdf"), 1, "for a file: 'fileq trace PATH'"),
        (("trace", "2f6c1d0e"), 1, "for a job: 'fileq show 2f6c1d0e'"),
    ],
)
def test_an_id_and_a_path_lead_to_the_command_that_takes_them(
    shell: CommandLine, words: tuple[str, str], code: int, advice: str
) -> None:
    assert advice in shell.fail(*words, code=code)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("retry", "2f6c1d0e"), "'fileq dlq retry ID' retries a dead job"),
        (("admin", "retry", "2f6c1d0e"), "'fileq dlq retry ID' retries a dead job"),
        (("logs",), "'fileq events' follows jobs; workers log to stderr"),
        (("stop",), "to stop a role, press Ctrl-C or send SIGTERM to its pid ('fileq workers' shows it)"),
        (("worker", "restart"), "but stops a role in a terminal"),
        (("ps",), "'fileq workers' lists the workers"),
        (("serve", "stop"), "to stop a role, press Ctrl-C or send SIGTERM"),
    ],
)
def test_commands_that_other_programs_have_lead_to_those_of_fileq(
    shell: CommandLine, words: tuple[str, ...], advice: str
) -> None:
    assert advice in shell.fail(*words, code=2)


def test_a_moved_dead_file_is_shown_and_found_at_its_new_place(shell: CommandLine) -> None:
    moved = str(shell.directory / "failed/a.1.pdf")
    path = bury_file(shell, "a.pdf", "bad", moved)
    assert f"  moved to {moved}" in shell.run("dlq", "list").splitlines()
    traced = shell.run("trace", moved)
    assert "job of a file moved here" in traced
    assert f"  job path: {path}" in traced
    assert "  job bad" in traced


def test_the_trace_of_a_dead_file_says_where_its_traceback_is(shell: CommandLine) -> None:
    path = bury_file(shell, "a.pdf", "first", traceback="Traceback …")
    bury_file(shell, "a.pdf", "second", traceback="Traceback …", output="text")
    traced = shell.run("trace", path).splitlines()
    assert "  for the traceback: 'fileq show first'" in traced
    assert "  for the traceback and the handler's output: 'fileq show second'" in traced
    assert any(line.startswith("an earlier job of this file") for line in traced)


def test_the_trace_of_a_job_without_a_traceback_does_not_lead_to_one(shell: CommandLine) -> None:
    assert "fileq show" not in shell.run("trace", bury_file(shell, "a.pdf", "only"))


def test_the_only_job_of_a_file_that_the_ledger_does_not_know_is_not_called_an_earlier_one(shell: CommandLine) -> None:
    push_file(shell, "/srv/a.pdf", "first")
    assert "\njob of this file" in shell.run("trace", "/srv/a.pdf")
    push_file(shell, "/srv/a.pdf", "second")
    traced = shell.run("trace", "/srv/a.pdf")
    assert "\nnewest job of this file" in traced
    assert "\nan earlier job of this file" in traced


def test_a_dead_job_that_was_not_moved_has_no_such_line(shell: CommandLine) -> None:
    dead(shell, "bad")
    assert "moved to" not in shell.run("dlq", "list")


def test_a_missing_or_moved_file_leads_to_its_new_place(shell: CommandLine) -> None:
    moved = shell.directory / "done/a/b.txt"
    moved.parent.mkdir(parents=True)
    moved.write_text("text")
    shell.settings["worker.after.completed"] = f"move:{shell.directory / 'done'}"
    assert f"a worker may have moved it to '{moved}'" in shell.fail("try", str(shell.setup.inbox / "a/b.txt"), code=2)
    assert f"to process it again: fileq reprocess --match {moved}; if" in shell.fail("enqueue", str(moved), code=2)


def test_a_moved_file_is_enqueued_again_as_enqueue_says(shell: CommandLine) -> None:
    moved = shell.directory / "done/a.1.txt"
    moved.parent.mkdir()
    moved.write_text("text")
    path = bury_file(shell, "a [1]{b}*.txt", "one", str(moved))
    bury_file(shell, "a 1b.txt", "similar")
    said = shell.fail("enqueue", path, code=2)
    assert f"can't be enqueued: a worker moved it to '{moved}'; " in said
    advised = shlex.split(said.partition("to process it again: fileq ")[2])
    for words in (advised, ["reprocess", "--match", str(moved)], ["reprocess", "--match", f"{moved.parent}/*"]):
        [file] = shell.json(*words, "--dry-run")["files"]
        assert (file["result"], file["path"]) == ("would_enqueue", str(moved))
    shell.run(*advised)
    assert f"a worker moved it to '{moved}'" in shell.fail("enqueue", path, code=2)
    assert "1 file skipped, still unfinished" in shell.run("reprocess", "--match", str(moved))
    assert "there is no such file" in shell.fail("enqueue", str(shell.setup.inbox / "never"), code=2)


def test_a_moved_file_whose_job_was_deleted_is_moved_back_to_be_enqueued(shell: CommandLine) -> None:
    moved = shell.directory / "failed/a.txt"
    moved.parent.mkdir()
    moved.write_text("text")
    shell.settings["worker.after.dead"] = f"move:{moved.parent}"
    path = bury_file(shell, "a.txt", "one", str(moved))
    shell.run("dlq", "delete", "one", "--yes")
    assert "the record has expired (worker.history_ttl) or was deleted" in shell.run("trace", path)
    said = shell.fail("trace", str(moved), code=1)
    assert "worker.after moves files there, and the record of its job has expired or was deleted" in said
    assert "was never enqueued" not in said
    said = shell.fail("enqueue", str(moved), code=2)
    assert "if that finds none, move it back and enqueue it there" in said
    moved.rename(path)
    shell.run("enqueue", path)


def test_a_text_for_a_section_names_its_keys(shell: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.directory)
    said = shell.fail("config", "set", "worker.after", "move:done", code=2)
    assert "set one of its keys: worker.after.completed, worker.after.dead" in said
