"""Ids in their short form: shown in tables, accepted by commands, on both brokers."""

from __future__ import annotations

import pytest

from fileq.core.job import raw_id
from fileq.testing.conformance.builders import burial, claim_one, dead, enqueue, ids_in, record_of, settle
from tests.support.command_line import CommandLine

ONE = "2f6c1d0e-5b7a-4c3f-9e21-8d4b6a7c9f10"
TWIN = "2f6c1d0e-5b7a-4c3f-9e21-000000000000"
OTHER = "2f6cffff-5b7a-4c3f-9e21-8d4b6a7c9f10"


def test_tables_show_eight_characters_and_json_the_whole_id(shell: CommandLine) -> None:
    enqueue(shell, ONE, OTHER)
    for words in (("list",), ("peek",), ("peek", "--queue", "low")):
        out = shell.run(*words)
        assert "2f6c1d0e  " in out
        assert "2f6cffff  " in out
        assert "\n2f6c1d0e-" not in out
        assert [job["id"] for job in shell.json(*words)["jobs"]] == [ONE, OTHER]


def test_ids_that_begin_alike_are_shown_with_as_many_characters_as_they_need(shell: CommandLine) -> None:
    enqueue(shell, ONE, TWIN, OTHER)
    out = shell.run("list")
    assert "2f6c1d0e-5b7a-4c3f-9e21-8  " in out
    assert "2f6c1d0e-5b7a-4c3f-9e21-0  " in out
    assert "2f6cffff  " in out
    assert shell.json("show", "2f6c1d0e-5b7a-4c3f-9e21-0")["id"] == TWIN


def test_a_job_is_shown_and_cancelled_by_the_beginning_of_its_id(shell: CommandLine) -> None:
    enqueue(shell, ONE, OTHER)
    assert shell.json("show", "2f6c1")["id"] == ONE
    assert ONE in shell.run("show", "2f6c1d0e")
    assert [r["id"] for r in shell.json("cancel", "2f6c1d0e", OTHER)["results"]] == [ONE, OTHER]
    assert record_of(shell, ONE).state == "cancelled"


def test_dead_jobs_are_retried_and_deleted_by_the_beginning_of_their_ids(shell: CommandLine) -> None:
    dead(shell, ONE)
    dead(shell, OTHER)
    shell.push("low", b"not a job")
    settle(shell, burial(claim_one(shell), error="not a job: malformed"))
    out = shell.run("dlq", "list")
    assert "2f6c1d0e  " in out
    short = raw_id(b"not a job")[:12]
    assert f"{short}  " in out
    assert shell.json("dlq", "retry", "2f6c1d0e")["results"][0]["id"] == ONE
    assert shell.json("dlq", "delete", "2f6cf", short)["count"] == 2
    assert (ids_in(shell, "low"), ids_in(shell, "dead_letter")) == ([ONE], [])


@pytest.mark.parametrize("words", [("show",), ("cancel",), ("dlq", "retry"), ("dlq", "delete")])
def test_a_beginning_of_several_ids_is_an_error_that_lists_them(shell: CommandLine, words: tuple[str, ...]) -> None:
    dead(shell, ONE)
    dead(shell, OTHER)
    said = shell.fail(*words, "2f6c", code=2)
    assert f"'2f6c' matches 2 ids: {ONE}, {OTHER}; give more characters" in said
    assert sorted(ids_in(shell, "dead_letter")) == [ONE, OTHER]


def test_an_id_that_a_caller_chose_must_be_given_in_full(shell: CommandLine) -> None:
    enqueue(shell, "report-10", "abcdef-1")
    assert "report-10  " in shell.run("list")
    assert "job 'report-1' not found" in shell.fail("show", "report-1", code=1)
    assert "abcdef: unknown" in shell.run("cancel", "abcdef", code=1)
    assert shell.json("show", "report-10")["id"] == "report-10"


def test_fewer_than_four_characters_are_no_beginning(shell: CommandLine) -> None:
    enqueue(shell, ONE)
    said = shell.fail("show", "2f6", code=2)
    assert said == "fileq: '2f6' is too short; give at least 4 characters of the id\n"


def test_an_exact_id_is_never_taken_for_a_beginning(shell: CommandLine) -> None:
    enqueue(shell, ONE, "2f6c1d0e")
    assert shell.json("show", "2f6c1d0e")["id"] == "2f6c1d0e"
