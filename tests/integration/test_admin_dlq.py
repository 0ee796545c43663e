"""`fileq admin dlq list|retry|delete` and `fileq admin purge-dlq`, on both brokers."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter

import pytest

from fileq.brokers.types import Entry
from fileq.core.job import decode, raw_id
from fileq.testing.conformance.builders import (
    a_job,
    burial,
    claim_one,
    claims_of,
    dead,
    enqueue,
    failed,
    id_of,
    ids_in,
    names,
    places_of,
    raws_in,
    record_of,
    running,
    settle,
)
from tests.support.command_line import Desk
from tests.support.program import command, environment, run
from tests.support.waiting import wait_until


def bury_all(desk: Desk, ids: list[str], slots: int = 250) -> None:
    """Dead jobs of these ids, quickly."""
    for start in range(0, len(ids), slots):
        some = ids[start : start + slots]
        enqueue(desk, *some)
        claims = claims_of(desk, *names(len(some), "slot"))
        desk.broker.settle_and_claim([burial(claim) for claim in claims], [])
    desk.broker.deregister(names(slots, "slot"))


def bury_garbage(desk: Desk, raw: bytes = b"not a job") -> str:
    desk.push("low", raw)
    settle(desk, burial(claim_one(desk), error="not a job: malformed"))
    return raw_id(raw)


def bury_file(desk: Desk, id: str, path: str, error: str) -> None:
    desk.broker.enqueue([Entry(a_job(id, filepath=path, retries=3, recoveries=2), "low")])
    settle(desk, burial(claim_one(desk), error=error))


def three(desk: Desk) -> None:
    bury_file(desk, "one", "/srv/in/2026/one.pdf", "OSError: Connection refused")
    bury_file(desk, "two", "/srv/in/2026/two.txt", "ValueError: no such page")
    bury_file(desk, "three", "/srv/other/three.pdf", "TimeoutError: connection REFUSED late")


# list


def test_dead_jobs_are_listed_newest_first_with_attempts_error_and_times(desk: Desk) -> None:
    settle(desk, failed(running(desk, "a"), delay_ms=0))
    desk.broker.promote()
    settle(desk, burial(claim_one(desk), error="ValueError: first\nsecond"))
    dead(desk, "b")
    listed = desk.json("admin", "dlq", "list")
    assert listed["total"] == 2
    newest, oldest = listed["jobs"]
    assert (newest["id"], oldest["id"]) == ("b", "a")
    assert (oldest["attempts"], oldest["error"], oldest["state"]) == (2, "ValueError: first\nsecond", "dead")
    assert oldest["ended"] >= oldest["created"]
    out = desk.run("dlq", "list")
    assert "2 attempts" in out
    assert "ValueError: first" in out
    assert "second" not in out
    assert "1 of 2 dead jobs" in desk.run("dlq", "list", "--limit", "1")


def test_dead_jobs_are_listed_by_path_and_by_error(desk: Desk) -> None:
    three(desk)
    for words, ids in {
        ("--match", "*.pdf"): ["three", "one"],
        ("--match", "/srv/in/**"): ["two", "one"],
        ("--error", "connection refused"): ["three", "one"],
        ("--error", "connection refused", "--match", "/srv/in/**/*.pdf"): ["one"],
        ("--error", "nobody"): [],
    }.items():
        assert [job["id"] for job in desk.json("dlq", "list", *words)["jobs"]] == ids, words
    assert desk.run("dlq", "list", "--error", "nobody") == "none of 3 dead jobs is like that\n"


def test_an_empty_dead_letter_queue(desk: Desk) -> None:
    assert desk.run("dlq", "list") == "no dead jobs\n"
    assert desk.json("dlq", "list") == {"total": 0, "jobs": []}
    assert desk.run("dlq", "retry", "--all") == "0 jobs put back\n"
    assert desk.run("purge-dlq", "--yes") == "0 dead jobs deleted\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dlq", "retry"), "which dead jobs? give ids, or --all"),
        (("dlq", "retry", "--match", "*.pdf"), "give --all as well"),
        (("dlq", "retry", "--all", "a"), "not both"),
        (("dlq", "retry", "--all", "--match", ""), "--match is empty"),
        (("dlq", "delete"), "ID"),
        (("dlq", "list", "--limit", "0"), "--limit is '0'"),
        (("dlq", "lst"), "unknown command"),
    ],
)
def test_a_wrong_argument_is_one_line_and_nothing_is_done(desk: Desk, words: tuple[str, ...], said: str) -> None:
    dead(desk, "a")
    assert said in desk.fail(*words, code=2)
    assert places_of(desk, "a") == ["dead_letter"]


# retry


def test_a_retried_job_starts_anew_under_its_id(desk: Desk) -> None:
    three(desk)
    answer = desk.json("dlq", "retry", "two")
    assert answer == {
        "count": 1,
        "is_dry_run": False,
        "results": [{"id": "two", "result": "retried", "filepath": "/srv/in/2026/two.txt", "reason": ""}],
    }
    [raw] = raws_in(desk, "low")
    job = decode(raw)
    assert (job.id, job.retries, job.recoveries, job.error, job.failed_at) == ("two", 0, 0, None, None)
    assert record_of(desk, "two").error == ""
    assert ids_in(desk, "dead_letter") == ["one", "three"]
    assert desk.broker.census().drift == 0


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ((), ["one", "three", "two"]),
        (("--match", "*.pdf"), ["one", "three"]),
        (("--error", "Refused"), ["one", "three"]),
        (("--match", "/srv/in/**", "--error", "refused"), ["one"]),
    ],
)
def test_all_or_those_that_meet_the_conditions_are_retried(desk: Desk, words: tuple[str, ...], ids: list[str]) -> None:
    three(desk)
    rehearsed = desk.json("dlq", "retry", "--all", *words, "--dry-run")
    assert (rehearsed["count"], rehearsed["is_dry_run"]) == (len(ids), True)
    assert sorted(r["id"] for r in rehearsed["results"]) == ids
    assert len(ids_in(desk, "dead_letter")) == 3, "a rehearsal changes nothing"
    assert "would be put back" in desk.run("dlq", "retry", "--all", *words, "--dry-run")
    assert desk.json("dlq", "retry", "--all", *words)["count"] == len(ids)
    assert sorted(ids_in(desk, "low")) == ids
    assert len(ids_in(desk, "dead_letter")) == 3 - len(ids)
    assert desk.json("dlq", "retry", "--all", *words)["count"] == 0
    assert sorted(ids_in(desk, "low")) == ids


def test_a_rehearsal_by_id_changes_nothing(desk: Desk) -> None:
    dead(desk, "a")
    assert desk.json("dlq", "retry", "a", "--dry-run")["count"] == 1
    assert places_of(desk, "a") == ["dead_letter"]


def test_an_id_that_is_not_dead_is_exit_1_and_the_others_are_retried(desk: Desk) -> None:
    dead(desk, "a")
    enqueue(desk, "waiting")
    out = desk.run("dlq", "retry", "a", "waiting", "nobody", code=1)
    assert "waiting: unknown: it is not in the dead-letter queue" in out
    assert places_of(desk, "a") == ["low"]
    assert ids_in(desk, "low").count("waiting") == 1


def test_bytes_that_are_no_job_are_refused_with_the_reason(desk: Desk) -> None:
    id = bury_garbage(desk)
    dead(desk, "a")
    out = desk.run("dlq", "retry", id, code=1)
    assert "these bytes are no job" in out
    assert desk.json("dlq", "retry", "--all")["count"] == 1
    assert ids_in(desk, "dead_letter") == [id]


def test_a_dead_job_without_a_record_is_retried_and_deleted(desk: Desk) -> None:
    dead(desk, "a")
    dead(desk, "b")
    for id in ("a", "b"):
        if desk.broker.kind == "redis":
            assert desk.server_client().delete(f"jobqueue:job:{id}") == 1
        else:
            desk.execute("DELETE FROM records WHERE id = ?", id)
    assert desk.json("dlq", "retry", "a")["count"] == 1
    assert desk.json("dlq", "delete", "b")["count"] == 1
    assert (ids_in(desk, "low"), ids_in(desk, "dead_letter")) == (["a"], [])
    assert desk.broker.census().drift == 0


def test_more_than_a_page_is_retried_in_one_go(desk: Desk) -> None:
    bury_all(desk, names(900))
    answer = desk.json("dlq", "retry", "--all")
    assert answer["count"] == 900
    assert sorted(ids_in(desk, "low")) == names(900)
    assert desk.broker.census().drift == 0


def test_killed_in_the_middle_and_repeated_nothing_is_lost_or_doubled(desk: Desk) -> None:
    ids = names(3000)
    bury_all(desk, ids)
    dead_count = lambda: desk.broker.census().dead  # noqa: E731
    with subprocess.Popen(
        command("dlq", "retry", "--all", settings=desk.settings),
        cwd=desk.directory,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: dead_count() < 3000, 30, every_s=0.0005)
        process.send_signal(signal.SIGKILL)
    left = dead_count()
    assert desk.broker.census().drift == 0
    everywhere = Counter(id_of(raw) for place in ("low", "dead_letter") for raw in raws_in(desk, place))
    assert everywhere == Counter(ids)
    assert desk.json("dlq", "retry", "--all")["count"] == left
    assert Counter(ids_in(desk, "low")) == Counter(ids)
    assert (dead_count(), desk.broker.census().drift) == (0, 0)


# delete and purge


def test_dead_jobs_and_dead_bytes_are_deleted_by_id(desk: Desk) -> None:
    id = bury_garbage(desk)
    dead(desk, "a")
    dead(desk, "b")
    answer = desk.json("dlq", "delete", "a", id)
    assert [(r["id"], r["result"]) for r in answer["results"]] == [("a", "deleted"), (id, "deleted")]
    assert ids_in(desk, "dead_letter") == ["b"]
    assert desk.broker.records(["a", id]) == [None, None]
    assert "it is not in the dead-letter queue" in desk.run("dlq", "delete", "a", code=1)
    assert desk.broker.census().drift == 0


def test_a_purge_counts_and_refuses_unless_it_is_told_to(desk: Desk) -> None:
    bury_all(desk, names(450))
    ended = run("purge-dlq", cwd=desk.directory, settings=desk.settings)
    assert (ended.returncode, ended.stdout) == (2, "450 dead jobs; nothing was deleted\n")
    assert "say --yes" in ended.stderr
    assert len(ids_in(desk, "dead_letter")) == 450
    assert desk.run("purge-dlq", "--yes") == "450 dead jobs deleted\n"
    assert ids_in(desk, "dead_letter") == []
    assert desk.broker.records(["job-0000"]) == [None]
    assert desk.broker.census().drift == 0


@pytest.mark.parametrize("words", [("purge-dlq", "--force"), ("dlq", "clear", "--yes")])
def test_other_words_for_a_purge(desk: Desk, words: tuple[str, ...]) -> None:
    dead(desk, "a")
    assert desk.json(*words) == {"deleted": 1, "dead": 1}


def test_a_refused_purge_tells_programs_the_count(desk: Desk) -> None:
    dead(desk, "a")
    ended = run("purge-dlq", "--json", cwd=desk.directory, settings=desk.settings)
    assert (ended.returncode, ended.stdout) == (2, '{"deleted":0,"dead":1}\n')
