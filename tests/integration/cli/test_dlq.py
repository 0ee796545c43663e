"""`fileq admin dlq list|groups|retry|delete` and `fileq admin purge-dlq`, on both brokers."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fileq.actions.bulk import ActionReport, BulkActions, JobAction
from fileq.brokers.types import Entry
from fileq.core.job import decode, raw_id
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    claims_of,
    completed,
    dead,
    enqueue,
    failed,
    foreign,
    id_of,
    ids_in,
    names,
    places_of,
    raws_in,
    record_of,
    running,
    settle,
)
from tests.support.bulk_actions import act_on_all
from tests.support.command_line import CommandLine
from tests.support.program import command, environment, run
from tests.support.waiting import wait_until


def bury_all(shell: CommandLine, ids: list[str], slots: int = 250) -> None:
    """Makes dead jobs with these ids, in batches."""
    for start in range(0, len(ids), slots):
        some = ids[start : start + slots]
        enqueue(shell, *some)
        claims = claims_of(shell, *names(len(some), "slot"))
        shell.broker.settle_and_claim([burial(claim) for claim in claims], [])
    shell.broker.deregister(names(slots, "slot"))


def bury_garbage(shell: CommandLine, raw: bytes = b"not a job") -> str:
    shell.push("low", raw)
    settle(shell, burial(claim_one(shell), error="not a job: malformed"))
    return raw_id(raw)


def bury_file(shell: CommandLine, id: str, path: str, error: str) -> None:
    shell.broker.enqueue([Entry(a_job(id, filepath=path, retries=3, recoveries=2), "low")])
    settle(shell, burial(claim_one(shell), error=error))


def bury_three(shell: CommandLine) -> None:
    bury_file(shell, "one", "/srv/in/2026/one.pdf", "OSError: Connection refused")
    bury_file(shell, "two", "/srv/in/2026/two.txt", "ValueError: no such page")
    bury_file(shell, "three", "/srv/other/three.pdf", "TimeoutError: connection REFUSED late")


# list


def test_dead_jobs_are_listed_newest_first_with_attempts_error_and_times(shell: CommandLine) -> None:
    settle(shell, failed(running(shell, "a"), delay_ms=0))
    shell.broker.promote()
    settle(shell, burial(claim_one(shell), error="ValueError: first\nsecond"))
    dead(shell, "b")
    listed = shell.json("admin", "dlq", "list")
    assert listed["total"] == 2
    newest, oldest = listed["jobs"]
    assert (newest["id"], oldest["id"]) == ("b", "a")
    assert (oldest["attempt_count"], oldest["error"], oldest["status"]) == (2, "ValueError: first\nsecond", "dead")
    assert oldest["completed_at"] >= oldest["created_at"]
    out = shell.run("dlq", "list")
    assert "2 attempts" in out
    assert "ValueError: first" in out
    assert "second" not in out
    assert "1 of 2 dead jobs" in shell.run("dlq", "list", "--limit", "1")


def test_dead_jobs_are_listed_by_path_and_by_error(shell: CommandLine) -> None:
    bury_three(shell)
    for words, ids in {
        ("--match", "*.pdf"): ["three", "one"],
        ("--match", "/srv/in/**"): ["two", "one"],
        ("--error", "connection refused"): ["three", "one"],
        ("--error", "connection refused", "--match", "/srv/in/**/*.pdf"): ["one"],
        ("--error", "absent"): [],
    }.items():
        assert [job["id"] for job in shell.json("dlq", "list", *words)["jobs"]] == ids, words
    assert shell.run("dlq", "list", "--error", "absent") == "none of the 3 dead jobs matches\n"


def test_a_single_dead_job_is_counted_as_one(shell: CommandLine) -> None:
    bury_file(shell, "one", "/srv/in/one.txt", "ValueError: no such page")
    assert "\n1 group, 1 dead job; " in shell.run("dlq", "groups")


def test_dead_jobs_are_grouped_by_cause_and_one_group_is_chosen(shell: CommandLine) -> None:
    bury_three(shell)
    bury_file(shell, "four", "/srv/in/2026/four.txt", "ValueError: no such page")
    found = shell.json("admin", "dlq", "groups")
    assert (found["total"], found["scanned"], found["is_partial"], found["group_count"]) == (4, 4, False, 3)
    group = found["groups"][0]
    assert (group["count"], group["sample_id"], group["kind"]) == (2, "four", "ValueError")
    assert group["directories"] == [{"name": "/srv/in/2026", "count": 2}]
    out = shell.run("dlq", "groups", "--limit", "1")
    assert f"{group['key']}  2 jobs" in out
    assert "/srv/in/2026 (2), .txt (2)" in out
    assert "1 of 3 groups, 4 dead jobs" in out
    keys = [one["key"] for one in shell.json("dlq", "groups", "--by", "directory")["groups"]]
    assert keys == ["/srv/in/2026", "/srv/other"]
    chosen = ("--fingerprint", group["key"][:6].upper())
    assert [job["id"] for job in shell.json("dlq", "list", *chosen)["jobs"]] == ["four", "two"]
    assert [job["fingerprint"] for job in shell.json("list", "--state", "dead", *chosen)["jobs"]] == [group["key"]] * 2
    assert shell.json("dlq", "retry", "--all", *chosen)["count"] == 2
    assert sorted(ids_in(shell, "low")) == ["four", "two"]
    assert "4 to 12 hexadecimal digits" in shell.fail("dlq", "list", "--fingerprint", "xyz", code=2)


def test_an_empty_dead_letter_queue(shell: CommandLine) -> None:
    assert shell.run("dlq", "list") == "no dead jobs\n"
    assert shell.json("dlq", "list") == {"total": 0, "jobs": []}
    assert shell.run("dlq", "retry", "--all") == "no jobs match\n"
    assert shell.run("purge-dlq", "--yes") == "0 dead jobs deleted\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dlq", "retry"), "specify dead jobs by id, or --all"),
        (("dlq", "retry", "--match", "*.pdf"), "filters need --all"),
        (("dlq", "retry", "--all", "a"), "specify either ids or --all"),
        (("dlq", "retry", "--all", "--match", ""), "--match is empty"),
        (("dlq", "delete"), "specify dead jobs by id, or --all"),
        (("dlq", "list", "--limit", "0"), "--limit is '0'"),
        (("dlq", "lst"), "unknown command"),
    ],
)
def test_a_wrong_argument_is_one_line_and_nothing_is_done(
    shell: CommandLine, words: tuple[str, ...], said: str
) -> None:
    dead(shell, "a")
    assert said in shell.fail(*words, code=2)
    assert places_of(shell, "a") == ["dead_letter"]


# retry


def test_a_retried_job_keeps_its_id_and_resets_its_counts(shell: CommandLine) -> None:
    bury_three(shell)
    report = shell.json("dlq", "retry", "two")
    assert report == {
        "count": 1,
        "is_dry_run": False,
        "results": [{"id": "two", "result": "retried", "path": "/srv/in/2026/two.txt", "reason": ""}],
    }
    [raw] = raws_in(shell, "low")
    job = decode(raw)
    assert (job.id, job.retries, job.recoveries, job.error, job.failed_at) == ("two", 0, 0, None, None)
    assert record_of(shell, "two").error == ""
    assert ids_in(shell, "dead_letter") == ["one", "three"]
    assert shell.broker.census().drift == 0


def test_a_line_of_a_list_has_no_blank_at_its_end(shell: CommandLine) -> None:
    shell.broker.enqueue([Entry(a_job("x", filepath="", type="boom"), "low")])
    settle(shell, burial(claim_one(shell), error="ValueError: no"))
    for words in "list", "groups":
        lines = shell.run("dlq", words).splitlines()
        assert any(line.endswith("boom") for line in lines)
        assert lines == [line.rstrip() for line in lines]


def test_a_retried_job_waits_from_its_retry(shell: CommandLine) -> None:
    bury_file(shell, "old", "/srv/in/old.txt", "ValueError: no such page")  # created years ago
    shell.json("dlq", "retry", "old")
    [low] = [queue for queue in shell.json("stats")["queues"] if queue["name"] == "low"]
    assert low["oldest_age_s"] < 60


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ((), ["one", "three", "two"]),
        (("--match", "*.pdf"), ["one", "three"]),
        (("--error", "Refused"), ["one", "three"]),
        (("--match", "/srv/in/**", "--error", "refused"), ["one"]),
    ],
)
def test_all_jobs_or_those_that_match_are_retried(shell: CommandLine, words: tuple[str, ...], ids: list[str]) -> None:
    bury_three(shell)
    dry = shell.json("dlq", "retry", "--all", *words, "--dry-run")
    assert (dry["count"], dry["is_dry_run"]) == (len(ids), True)
    assert sorted(r["id"] for r in dry["results"]) == ids
    assert len(ids_in(shell, "dead_letter")) == 3, "a dry run changes nothing"
    assert "would be retried" in shell.run("dlq", "retry", "--all", *words, "--dry-run")
    assert shell.json("dlq", "retry", "--all", *words)["count"] == len(ids)
    assert sorted(ids_in(shell, "low")) == ids
    assert len(ids_in(shell, "dead_letter")) == 3 - len(ids)
    assert shell.json("dlq", "retry", "--all", *words)["count"] == 0
    assert sorted(ids_in(shell, "low")) == ids


def test_a_dry_run_by_id_changes_nothing(shell: CommandLine) -> None:
    dead(shell, "a")
    assert shell.json("dlq", "retry", "a", "--dry-run")["count"] == 1
    assert places_of(shell, "a") == ["dead_letter"]


def test_an_id_that_is_not_dead_is_exit_1_and_the_others_are_retried(shell: CommandLine) -> None:
    dead(shell, "a")
    enqueue(shell, "waiting")
    out = shell.run("dlq", "retry", "a", "waiting", "absent", code=1)
    assert "waiting: refused: it is pending, not dead; a worker will run it\n" in out
    assert "absent: unknown: no job has this id, or its record has expired\n" in out
    assert places_of(shell, "a") == ["low"]
    assert ids_in(shell, "low").count("waiting") == 1


def test_the_reason_names_the_state_of_a_job_that_is_not_dead_and_the_next_step(shell: CommandLine) -> None:
    completed(shell, "done")
    shell.broker.enqueue([Entry(a_job("typed", filepath="", type="mail"), "low")])
    settle(shell, complete(claim_one(shell)))
    settle(shell, failed(running(shell, "again"), delay_ms=60_000))
    running(shell, "busy")
    ids = ("done", "typed", "again", "busy")
    assert [(r["result"], r["reason"]) for r in shell.json("dlq", "retry", *ids, code=1)["results"]] == [
        ("refused", "it is completed, not dead; 'fileq reprocess --match GLOB' enqueues its file again"),
        ("refused", "it is completed, not dead; enqueue a new job instead"),
        ("refused", "it is retrying, not dead; a worker will run it when it is due"),
        ("refused", "it is running, not dead; it needs no retry"),
    ]
    assert [r["reason"] for r in shell.json("dlq", "delete", "done", "again", code=1)["results"]] == [
        "it is completed, not dead; its record expires after worker.history_ttl",
        "it is retrying, not dead; 'fileq cancel again' cancels it",
    ]


def test_bytes_that_are_not_a_job_are_refused_with_the_reason(shell: CommandLine) -> None:
    id = bury_garbage(shell)
    dead(shell, "a")
    out = shell.run("dlq", "retry", id, code=1)
    assert "these bytes are not a job" in out
    assert shell.json("dlq", "retry", "--all")["count"] == 1
    assert ids_in(shell, "dead_letter") == [id]


def test_a_dead_job_without_a_record_is_retried_and_deleted(shell: CommandLine) -> None:
    dead(shell, "a")
    dead(shell, "b")
    for id in ("a", "b"):
        if shell.broker.kind == "redis":
            assert shell.server_client().delete(f"jobqueue:job:{id}") == 1
        else:
            shell.execute("DELETE FROM records WHERE id = ?", id)
    assert shell.json("dlq", "retry", "a")["count"] == 1
    assert shell.json("dlq", "delete", "b")["count"] == 1
    assert (ids_in(shell, "low"), ids_in(shell, "dead_letter")) == (["a"], [])
    assert shell.broker.census().drift == 0


def test_a_dead_job_whose_id_another_program_ran_later_is_deleted(shell: CommandLine) -> None:
    for id in ("a", "b"):
        dead(shell, id)
        shell.push("low", foreign(id))
        settle(shell, complete(claim_one(shell)))
    assert shell.run("dlq", "delete", "a").endswith("1 job deleted\n")
    assert shell.run("purge-dlq", "--yes") == "1 dead job deleted\n"
    assert ids_in(shell, "dead_letter") == []
    assert "clean" in shell.run("fsck")
    assert "a: refused: it is completed, not dead" in shell.run("dlq", "delete", "a", code=1)


def test_more_than_one_page_is_retried(shell: CommandLine) -> None:
    bury_all(shell, names(900))
    report = shell.json("dlq", "retry", "--all")
    assert report["count"] == 900
    assert sorted(ids_in(shell, "low")) == names(900)
    assert shell.broker.census().drift == 0


def test_a_retry_that_is_killed_and_repeated_loses_and_doubles_nothing(shell: CommandLine) -> None:
    ids = names(3000)
    bury_all(shell, ids)
    dead_count = lambda: shell.broker.census().dead  # noqa: E731
    with subprocess.Popen(
        command("dlq", "retry", "--all", settings=shell.settings),
        cwd=shell.directory,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: dead_count() < 3000, 30, every_s=0.0005)
        process.send_signal(signal.SIGKILL)
    left = dead_count()
    assert shell.broker.census().drift == 0
    everywhere = Counter(id_of(raw) for place in ("low", "dead_letter") for raw in raws_in(shell, place))
    assert everywhere == Counter(ids)
    assert shell.json("dlq", "retry", "--all")["count"] == left
    assert Counter(ids_in(shell, "low")) == Counter(ids)
    assert (dead_count(), shell.broker.census().drift) == (0, 0)


# delete and purge


@pytest.mark.parametrize("words", [("a",), ("--all",)])
def test_a_job_whose_unique_key_another_job_has_is_not_retried(shell: CommandLine, words: tuple[str, ...]) -> None:
    shell.broker.enqueue([Entry(a_job("a", unique_key="k"), "low")])
    settle(shell, burial(claim_one(shell)))
    shell.broker.enqueue([Entry(a_job("b", unique_key="k"), "low")])
    ended = run("dlq", "retry", *words, "--json", cwd=shell.directory, settings=shell.settings)
    report = json.loads(ended.stdout)
    [result] = report["results"]
    assert (report["count"], result["id"], result["result"]) == (0, "a", "refused")
    assert result["reason"] == "job b has the same unique key and is not finished"
    assert places_of(shell, "a") == ["dead_letter"]


def test_dead_jobs_and_dead_bytes_are_deleted_by_id(shell: CommandLine) -> None:
    id = bury_garbage(shell)
    dead(shell, "a")
    dead(shell, "b")
    report = shell.json("dlq", "delete", "a", id)
    assert [(r["id"], r["result"]) for r in report["results"]] == [("a", "deleted"), (id, "deleted")]
    assert ids_in(shell, "dead_letter") == ["b"]
    assert shell.broker.records(["a", id]) == [None, None]
    assert "a: unknown: no job has this id" in shell.run("dlq", "delete", "a", code=1)
    assert shell.broker.census().drift == 0


class Overtaken:
    """The broker of a command; another caller changes every third job just before each change."""

    def __init__(self, shell: CommandLine) -> None:
        self._broker = shell.broker
        self.taken: list[str] = []

    def discard(self, dead: Sequence[tuple[str, bytes]]) -> list[bool]:
        self._broker.discard(dead[::3])
        self.taken += [id for id, _ in dead[::3]]
        return self._broker.discard(dead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


def deleted_by(report: ActionReport) -> set[str]:
    return {result.id for result in report.results if result.result == "deleted"}


def test_a_delete_names_the_jobs_that_it_has_deleted_when_another_deletes_some(shell: CommandLine) -> None:
    """medium: `dlq delete` and bulk actions name wrong ids when others act meanwhile."""
    by_filter = lambda broker: act_on_all(broker, shell.config, JobAction.DELETE)  # noqa: E731
    by_ids = lambda broker: BulkActions(broker, shell.config).act_on(JobAction.DELETE, names(30))  # noqa: E731
    for act in (by_filter, by_ids):
        bury_all(shell, names(30))
        broker = Overtaken(shell)
        report = act(broker)
        assert deleted_by(report) == set(names(30)) - set(broker.taken)
        assert report.count == 30 - len(broker.taken) < 30
        assert ids_in(shell, "dead_letter") == []


def test_a_purge_goes_on_when_another_deletes_a_page_of_it(shell: CommandLine) -> None:
    bury_all(shell, names(450))

    class OneAhead(Overtaken):
        def discard(self, dead: Sequence[tuple[str, bytes]]) -> list[bool]:
            if not self.taken:
                self._broker.discard(dead)
                self.taken += [id for id, _ in dead]
            return self._broker.discard(dead)

    broker: Any = OneAhead(shell)
    assert act_on_all(broker, shell.config, JobAction.DELETE).count == 450 - len(broker.taken) < 450
    assert ids_in(shell, "dead_letter") == []


def test_a_delete_and_a_retry_at_the_same_time_name_each_job_once(shell: CommandLine) -> None:
    """medium: 52 of 900 ids were named by the wrong command."""
    bury_all(shell, names(900))
    calls = [("dlq", "delete", "--all", "--yes", "--json"), ("dlq", "retry", "--all", "--json")]
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda words: run(*words, cwd=shell.directory, settings=shell.settings), calls))
    assert [one.returncode for one in ended] == [0, 0], ended
    deleted, retried = (json.loads(one.stdout) for one in ended)
    named = [{r["id"] for r in report["results"]} for report in (deleted, retried)]
    assert [len(ids) for ids in named] == [deleted["count"], retried["count"]]
    assert named[1] == set(ids_in(shell, "low"))
    assert named[0] == set(names(900)) - named[1]
    assert shell.broker.census().drift == 0


def test_a_purge_without_yes_only_counts(shell: CommandLine) -> None:
    bury_all(shell, names(450))
    ended = run("purge-dlq", cwd=shell.directory, settings=shell.settings)
    assert (ended.returncode, ended.stdout) == (2, "450 dead jobs; nothing was deleted\n")
    assert "add --yes to confirm" in ended.stderr
    assert len(ids_in(shell, "dead_letter")) == 450
    assert shell.run("purge-dlq", "--yes") == "450 dead jobs deleted\n"
    assert ids_in(shell, "dead_letter") == []
    assert shell.broker.records(["job-0000"]) == [None]
    assert shell.broker.census().drift == 0


@pytest.mark.parametrize("words", [("purge-dlq", "--force"), ("dlq", "clear", "--yes")])
def test_force_and_clear_are_aliases_of_a_purge(shell: CommandLine, words: tuple[str, ...]) -> None:
    dead(shell, "a")
    assert shell.json(*words) == {"deleted": 1, "dead": 1}


def test_a_purge_without_yes_prints_the_count_as_json(shell: CommandLine) -> None:
    dead(shell, "a")
    ended = run("purge-dlq", "--json", cwd=shell.directory, settings=shell.settings)
    assert (ended.returncode, ended.stdout) == (2, '{"deleted":0,"dead":1}\n')
