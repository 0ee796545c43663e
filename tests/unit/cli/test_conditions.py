"""The conditions that choose jobs are declared once, and every surface has all of them."""

from __future__ import annotations

import msgspec
import pytest

from fileq.cli.arguments import filter_of
from fileq.cli.parser import all_commands, parser_of
from fileq.client.options import JobFilters
from fileq.core.job import State
from fileq.queries.job_filter import NAMES, JobConditions, conditions_of, read_conditions
from fileq.server.routes import ROUTES

SAMPLE = JobConditions(
    status="dead",
    type="report",
    priority="low",
    queue="high",
    worker="host-1-0",
    batch="b",
    schedule="nightly",
    match="*.pdf",
    error="Timeout",
    fingerprint="0123",
    since="2026-11-01T00:00:00.000Z",
    until="2026-11-02T00:00:00.000Z",
    tag={"tenant": "acme", "n": "1"},
    q="inbox",
)
QUEUES = ("high", "low")


@pytest.mark.parametrize("words", ["list", "dlq list", "dlq retry", "dlq delete", "cancel", "reprocess"])
def test_every_command_that_chooses_jobs_has_an_option_for_each_condition(words: str) -> None:
    command = next(one for one in all_commands() if one.name == f"fileq admin {words}")
    flags = {flag for action in parser_of(command).actions for flag in action.option_strings}
    # Files that are processed again belong to no batch.
    assert {f"--{name}" for name in NAMES} - flags == ({"--batch"} if words == "reprocess" else set())


@pytest.mark.parametrize("path", ["GET /jobs", "GET /dead", "GET /dead/groups", "POST /files/reprocess"])
def test_every_request_that_chooses_jobs_takes_each_condition(path: str) -> None:
    route = next(one for one in ROUTES if f"{one.method} {one.path}" == path)
    taken = route.query if route.method == "GET" else route.body
    assert {field.name for field in msgspec.structs.fields(taken)} >= set(NAMES)


def test_a_client_takes_each_condition_and_a_limit() -> None:
    assert JobFilters.__annotations__.keys() == {*NAMES, "limit"}


def test_no_condition_is_lost_between_a_filter_and_its_words() -> None:
    assert all(getattr(SAMPLE, name) for name in NAMES)
    wanted, wrong = read_conditions(SAMPLE, QUEUES, 0)
    assert (wrong, conditions_of(wanted)) == ([], SAMPLE)


def test_the_command_line_reads_each_condition() -> None:
    command = next(one for one in all_commands() if one.name == "fileq admin list")
    values = {name: getattr(SAMPLE, name) for name in NAMES if name != "tag"}
    line = [word for name, value in values.items() for word in (f"--{name}", value)]
    options = parser_of(command).parse_args([*line, "--tag", "tenant=acme", "--tag", "n=1", "--limit", "7"])
    wanted = filter_of(options, QUEUES)
    assert (conditions_of(wanted), wanted.limit, wanted.state) == (SAMPLE, 7, State.DEAD)


def test_everything_that_is_wrong_is_named_at_once() -> None:
    given = msgspec.structs.replace(SAMPLE, queue="mid", since="soon")
    _, wrong = read_conditions(given, QUEUES, 0)
    assert dict(wrong) == {
        "queue": "no queue is named 'mid'; the queues are high, low",
        "since": "since is 'soon'; it must be a time such as 2026-01-31T18:00:00Z, or a duration such as 2h",
    }
