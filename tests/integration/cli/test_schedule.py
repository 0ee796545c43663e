"""`fileq schedule`, on both brokers, and what `fileq stats` and `fileq doctor` say about schedules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fileq.brokers.schedule_definitions import KIND, broker_now_ms, define, known_schedules
from fileq.cli import main
from fileq.core.job import decode
from fileq.core.schedule import FROM_CONFIGURATION, ScheduleDefinition, ScheduleDocument
from tests.support.command_line import CommandLine
from tests.support.doctor import Doctor

ADD = ("schedule", "add", "nightly", "30 2 * * 1-5", "--type", "report", "--timezone", "Europe/Berlin")
DAY_MS = 86_400_000


def test_a_schedule_is_added_shown_paused_resumed_run_and_removed(shell: CommandLine) -> None:
    assert re.fullmatch(
        r"nightly added; Weekdays at 02:30 \(Europe/Berlin\); next \S+ 02:30:00\+0[12]:00\n",
        shell.run(*ADD, "--payload", '{"days": 7, "name": "7"}', "--max-retries", "2", "--timeout", "5m"),
    )
    found = shell.json("schedule", "show", "nightly")
    assert (found["status"], found["source"], found["payload"]) == ("active", "program", {"days": 7, "name": "7"})
    assert (found["max_retries"], found["timeout_s"], found["words"]) == (2, 300, "Weekdays at 02:30")
    assert shell.json("schedule", "list") == {"schedules": [found]}
    assert "Europe/Berlin" in shell.run("schedule", "list")
    assert "in words     Weekdays at 02:30" in shell.run("schedule", "show", "nightly")
    times = shell.json("schedule", "next", "nightly", "-n", "3")["times"]
    assert (len(times), times[0]) == (3, found["next"])
    assert times[0]["local"].replace("T", " ") in shell.run("schedule", "next", "nightly")
    assert shell.run("schedule", "pause", "nightly") == "nightly paused\n"
    assert shell.run("schedule", "pause", "nightly") == "nightly is already paused\n"
    assert shell.json("schedule", "show", "nightly")["status"] == "paused"
    assert shell.run("schedule", "resume", "nightly").startswith("nightly resumed; next ")
    assert shell.run("schedule", "resume", "nightly").startswith("nightly was not paused; next ")
    before = shell.broker.schedules()
    id = shell.json("schedule", "run", "nightly")["id"]
    assert re.fullmatch(r"sched\.nightly\.manual\.[0-9a-f-]{36}", id)
    shown = " ".join(shell.run("schedule", "show", "nightly").split())
    assert f"manual job {id} (pending)" in shown
    [raw] = shell.broker.peek("low", 5)
    job = decode(raw)
    assert (job.id, job.type, job.max_retries, job.timeout, job.payload_value["missed"]) == (id, "report", 2, 300, 0)
    assert shell.broker.schedules() == before
    assert shell.run("schedule", "remove", "nightly") == "nightly removed; its jobs are kept\n"
    assert known_schedules(shell.broker) == {}
    assert shell.run("schedule", "list").startswith("no schedules")


def test_the_answer_says_whether_a_schedule_is_new_changed_or_paused(shell: CommandLine) -> None:
    add = ("schedule", "add", "a", "@daily", "--type")
    assert shell.run(*add, "t").startswith("a added; Every day at 00:00 (UTC); next ")
    assert shell.run(*add, "t").startswith("a unchanged; ")
    assert shell.run(*add, "u").startswith("a updated; ")
    assert shell.run(*add, "u", "--paused") == "a unchanged; Every day at 00:00 (UTC); paused\n"
    assert shell.json("schedule", "show", "a")["status"] == "paused", "what was asked for is done"
    assert shell.run(*add, "u").endswith("; paused\n"), "it stays paused until schedule resume"


def test_the_next_times_are_bounded(shell: CommandLine) -> None:
    shell.run(*ADD)
    assert "it must be a whole number, at most 1000" in shell.fail("schedule", "next", "nightly", "-n", "1001", code=2)


def test_a_problem_is_named_as_it_was_typed(shell: CommandLine) -> None:
    assert shell.fail("schedule", "add", "a", "x", "--type", "t", code=2).startswith("fileq: cron is 'x'; ")
    assert shell.fail("schedule", "add", "a", "@daily", code=2).startswith("fileq: schedule a has neither type ")


def test_a_directory_to_scan_that_is_missing_or_outside_of_the_roots_is_defined_with_a_warning(
    shell: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    (shell.setup.inbox / "sub").mkdir()
    for directory, warning in (
        (shell.setup.inbox, ""),
        (shell.setup.inbox / "sub", ""),
        (shell.setup.inbox / "absent", "absent' does not exist here; a scan fails on a worker where that is so"),
        (shell.directory, "' is not below producer.scan_dir; a worker with this configuration refuses its files"),
    ):
        capsys.readouterr()
        assert main(["schedule", "add", "scans", "@daily", "--scan", str(directory), *shell.sets]) == 0
        said = capsys.readouterr()
        assert said.out.startswith(("scans added; ", "scans updated; "))
        assert bool(warning) == bool(said.err)
        assert warning in " ".join(said.err.split())
    assert main(["schedule", "add", "scans", "@daily", "--scan", "absent", "-q", *shell.sets]) == 0
    assert capsys.readouterr().err == ""


def test_the_same_definition_again_changes_nothing(shell: CommandLine) -> None:
    shell.run(*ADD)
    before = known_schedules(shell.broker)
    shell.run(*ADD)
    assert known_schedules(shell.broker) == before
    shell.run(*ADD, "--overlap", "allow")
    after = known_schedules(shell.broker)["nightly"]
    assert after.state is not None
    assert before["nightly"].state is not None
    assert after.state.next_ms == before["nightly"].state.next_ms
    assert after.state.revision != before["nightly"].state.revision


def test_scan_and_reprocess_can_be_added(shell: CommandLine) -> None:
    shell.run("schedule", "add", "s", "@hourly", "--scan", str(shell.setup.inbox), "--paused")
    shell.run("schedule", "add", "r", "@daily", "--reprocess", "*.pdf", "--since", "1d")
    s, r = (shell.json("schedule", "show", name) for name in "sr")
    directory = {"dir": str(shell.setup.inbox)}
    assert (s["type"], s["payload"], s["status"], s["next"]) == ("fileq.scan", directory, "paused", None)
    assert (r["type"], r["payload"]) == ("fileq.reprocess", {"match": "*.pdf", "since_s": 86_400})


def test_a_directory_to_scan_is_stored_as_an_absolute_path(shell: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.setup.inbox.parent)
    shell.run("schedule", "add", "s", "@hourly", "--scan", shell.setup.inbox.name)
    assert shell.json("schedule", "show", "s")["payload"] == {"dir": str(shell.setup.inbox)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "a b", "@daily", "--type", "t"), "schedule a b is 'a b'; it must be a name that matches"),
        (("add", "a", "61 * * * *", "--type", "t"), "its minute is invalid"),
        (("add", "a", "@daily", "--type", "t", "--timezone", "Berlin"), "did you mean Europe/Berlin?"),
        (("add", "a", "@daily"), "has neither type nor reprocess nor scan"),
        (("add", "a", "@daily", "--type", "t", "--priority", "mid"), "it must be one of high or low"),
        (("add", "a", "@daily", "--type", "t", "--payload", "[1]"), "--payload is '[1]'; it must be a JSON object"),
        (("add", "a", "@daily", "--type", "t", "--payload", '{"a": 1, "a": 2}'), "the key 'a' is given twice"),
        (("add", "a", "@daily", "--type", "t", "--payload", '{"missed": 1}'), "which fileq sets itself"),
        (("add", "a", "@daily", "--type", "t", "--since", "1d"), "--since needs --reprocess"),
        (("add", "a", "@daily", "--type", "t", "--missed", "some"), "skip, last or all:N"),
    ],
)
def test_what_can_not_be_defined_is_refused(shell: CommandLine, words: tuple[str, ...], message: str) -> None:
    assert message in shell.fail("schedule", *words, code=2)
    assert known_schedules(shell.broker) == {}


@pytest.mark.parametrize("word", ["show", "next", "pause", "resume", "run", "remove"])
def test_a_schedule_that_does_not_exist_is_named_with_the_nearest(shell: CommandLine, word: str) -> None:
    shell.run(*ADD)
    assert "no schedule is named 'nightli'; did you mean 'nightly'?" in shell.fail("schedule", word, "nightli", code=1)


def test_a_schedule_of_a_configuration_can_be_paused_and_run_only(shell: CommandLine) -> None:
    definition = ScheduleDefinition(cron="@daily", type="t")
    document = ScheduleDocument(definition=definition, source=FROM_CONFIGURATION)
    define(shell.broker, "nightly", document, broker_now_ms(shell.broker))
    assert "is defined by the configuration; change it there" in shell.fail(*ADD, code=2)
    assert "is in the configuration of a worker" in shell.fail("schedule", "remove", "nightly", code=2)
    shell.run("schedule", "pause", "nightly")
    shell.run("schedule", "run", "nightly")
    marked = ScheduleDocument(definition=definition, source=FROM_CONFIGURATION, unclaimed_ms=1)
    define(shell.broker, "nightly", marked, broker_now_ms(shell.broker))
    shell.run("schedule", "remove", "nightly")
    assert known_schedules(shell.broker) == {}


def test_schedules_that_no_worker_fires_are_shown(shell: CommandLine) -> None:
    now_ms = broker_now_ms(shell.broker)
    document = ScheduleDocument(definition=ScheduleDefinition(cron="@hourly", type="t"))
    define(shell.broker, "late", document, now_ms - DAY_MS)
    shell.broker.put_document(KIND, "wrong", b"{}")
    shell.broker.define_schedule("wrong", "r", now_ms + DAY_MS)
    shell.run("schedule", "add", "half", "@daily", "--type", "t")
    shell.broker.remove_schedule("half")
    status = {one["name"]: one["status"] for one in shell.json("schedule", "list")["schedules"]}
    assert status == {"half": "incomplete", "late": "late", "wrong": "broken"}
    assert "wrong: its definition can't be read" in shell.run("schedule", "list")
    assert "has no runs: its definition can't be read" in shell.fail("schedule", "next", "wrong", code=1)
    assert "broken" in shell.run("schedule", "show", "wrong")
    assert shell.json("stats")["schedules"] == {"count": 2, "paused": 0, "late": ["late"]}
    assert "late: late; see 'fileq schedule list'" in shell.run("stats")


def test_doctor_checks_the_time_zones(cwd: Path, doctor: Doctor) -> None:
    assert doctor("worker").find("schedules") == []
    [found] = doctor("worker", schedules='{s: {cron: "@daily", type: t, timezone: Asia/Tokyo}}').find("schedules")
    assert re.fullmatch(r"1 in the configuration; time zones of 20\d\d\w", found["detail"])


def test_the_list_shows_the_job_of_a_run_by_hand_and_times_as_everywhere(shell: CommandLine) -> None:
    shell.run("schedule", "add", "nightly", "@daily", "--type", "report", "-q")
    shell.run("schedule", "run", "nightly", "-q")
    assert re.search(r"\d{4}-\d\d-\d\d 00:00:00Z  pending ", shell.run("schedule", "list"))
    assert re.search(r"^manual run +\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ ", shell.run("schedule", "show", "nightly"), re.M)
