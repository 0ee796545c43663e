"""`fileq admin pause|resume|reprocess|fsck`, on both brokers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

from fileq.brokers.types import Entry
from fileq.commands.admin.fsck import check
from fileq.core.job import Version, decode, file_job
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import (
    burial,
    claim_one,
    completed,
    enqueue,
    foreign,
    ids_in,
    names,
    raws_in,
    record_of,
    running,
    settle,
)
from tests.support.command_line import Desk
from tests.support.program import command, environment, run
from tests.support.waiting import wait_until

NOW = datetime.now(UTC)


# pause and resume


def test_a_queue_is_paused_and_resumed_and_repeating_changes_nothing(desk: Desk) -> None:
    enqueue(desk, "a")
    expected = {"queue": "low", "is_paused": True, "has_changed": True, "waiting": 1}
    assert desk.json("admin", "pause", "low") == expected
    assert desk.json("pause", "low") == {**expected, "has_changed": False}
    assert desk.broker.census().paused == {"low"}
    assert desk.run("resume", "low") == "low is open, 1 job in it\n"
    assert desk.run("resume", "low") == "low is open already, 1 job in it\n"
    assert desk.json("resume", "low") == {**expected, "is_paused": False, "has_changed": False}
    assert desk.broker.census().paused == frozenset()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pause", "nope"), "no queue is called 'nope'; there are high, low"),
        (("resume", "dead_letter"), "no queue is called 'dead_letter'"),
        (("pause",), "QUEUE"),
        (("reprocess", "--since", "yesterday"), "--since is 'yesterday'"),
        (("reprocess", "--match", ""), "--match is empty"),
        (("fsck", "--rpair"), "unknown option '--rpair'"),
    ],
)
def test_a_wrong_argument_is_one_line(desk: Desk, words: tuple[str, ...], said: str) -> None:
    assert said in desk.fail(*words, code=2)
    assert desk.broker.census().paused == frozenset()


# reprocess


def know(desk: Desk, name: bytes, *, is_there: bool = True, age_s: float = 0.0, ends: bool = True) -> bytes:
    """A file that was processed once; its path."""
    path = os.path.join(os.fsencode(desk.directory), b"in", name)
    modified_ns = time.time_ns() - int(age_s * 1e9)
    if is_there:
        with open(path, "wb") as file:
            file.write(b"four")
        os.utime(path, ns=(modified_ns, modified_ns))
    signature = f"4-{modified_ns}"
    job = file_job(path, size=4, priority="low", now=NOW, signature=signature)
    desk.broker.enqueue([Entry(job, "low", Version(path, signature))])
    if ends:
        settle(desk, complete(claim_one(desk)))
    return path


def test_known_files_are_enqueued_again(desk: Desk) -> None:
    pdf, odd = know(desk, b"a.pdf"), know(desk, b"\xff odd.txt")
    know(desk, b"gone.txt", is_there=False)
    rehearsed = desk.json("reprocess", "--dry-run")
    assert (rehearsed["enqueued"], rehearsed["missing"], rehearsed["unfinished"]) == (2, 1, 0)
    assert sum(desk.broker.census().pending.values()) == 0
    done = desk.json("reprocess")
    assert (done["enqueued"], done["missing"], done["is_dry_run"]) == (2, 1, False)
    [high], [low] = raws_in(desk, "high"), raws_in(desk, "low")
    assert (decode(high).path, decode(low).path) == (pdf, odd)
    [entry] = desk.broker.lookup([pdf])
    assert entry is not None
    assert entry.versions[0] == (decode(high).signature, decode(high).id)
    again = desk.run("reprocess")
    assert "0 files enqueued again; 1 file missing; 2 files left out, still waiting or running" in again
    assert f"missing: {desk.directory}/in/gone.txt" in again
    assert desk.broker.census().drift == 0


def test_only_the_newest_version_of_a_file_is_enqueued(desk: Desk) -> None:
    know(desk, b"a.txt", age_s=100)
    path = know(desk, b"a.txt")
    assert desk.json("reprocess")["enqueued"] == 1
    [raw] = raws_in(desk, "low")
    assert decode(raw).signature == f"4-{os.stat(path).st_mtime_ns}"


def test_files_are_chosen_by_glob_and_by_time(desk: Desk) -> None:
    know(desk, b"new.txt", age_s=60)
    know(desk, b"old.txt", age_s=3 * 3600)
    know(desk, b"new.log", age_s=60)
    inside = f"{desk.directory}/in/**"
    for words, count in {
        ("--match", "*.txt"): 2,
        ("--since", "2h"): 2,
        ("--since", "2h", "--match", "*.txt"): 1,
        ("--since", "2026-01-01"): 3,
        ("--since", "2999-01-01T00:00:00Z"): 0,
        ("--match", inside): 3,
        ("--match", "/elsewhere/**"): 0,
    }.items():
        assert desk.json("reprocess", "--dry-run", *words)["enqueued"] == count, words


def test_nothing_known_is_nothing_to_do(desk: Desk) -> None:
    assert desk.run("reprocess") == "0 files enqueued again\n"


def test_a_path_of_the_producer_is_looked_for_where_it_is_here(desk: Desk) -> None:
    path = b"/srv/theirs/file.txt"
    (desk.directory / "in" / "file.txt").write_bytes(b"four")
    job = file_job(path, size=4, priority="low", now=NOW, signature="4-17")
    desk.broker.enqueue([Entry(job, "low", Version(path, "4-17"))])
    settle(desk, complete(claim_one(desk)))
    assert desk.json("reprocess", "--dry-run")["missing"] == 1
    mapped = f"worker.path_map={{/srv/theirs: {desk.directory}/in}}"
    assert desk.json("reprocess", "--set", mapped)["enqueued"] == 1
    assert decode(raws_in(desk, "low")[0]).path == path


# fsck


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two looks follow each other at once: nothing else moves in these tests."""
    monkeypatch.setattr(check, "PAUSE_S", 0.0)


def lose_element(desk: Desk) -> None:
    if desk.broker.kind == "redis":
        assert desk.server_client().lpop("jobqueue:low_priority") is not None
    else:
        desk.execute("DELETE FROM queued WHERE position = (SELECT max(position) FROM queued WHERE queue = 'low')")


def lose_record(desk: Desk, id: str) -> None:
    if desk.broker.kind == "redis":
        assert desk.server_client().delete(f"jobqueue:job:{id}") == 1
    else:
        desk.execute("DELETE FROM records WHERE id = ?", id)


def bend_counter(desk: Desk) -> None:
    if desk.broker.kind == "redis":
        desk.server_client().hincrby("jobqueue:stats", "completed", -1)
    else:
        desk.execute("UPDATE stats SET value = value - 1 WHERE name = 'completed'")


def drop_slot(desk: Desk, slot: str) -> None:
    """The registry entry and the heartbeat."""
    if desk.broker.kind == "redis":
        client = desk.server_client()
        assert client.hdel("jobqueue:workers", slot) == client.delete(f"jobqueue:processing:worker:{slot}") == 1
    else:
        desk.execute("UPDATE slots SET info = NULL, alive_until_ms = 0 WHERE slot = ?", slot)


@pytest.mark.usefixtures("no_pauses")
def test_a_clean_system_is_exit_0(desk: Desk) -> None:
    assert "clean: 0 elements, 0 records, 0 slots" in desk.run("fsck")
    completed(desk, "c")
    enqueue(desk, "a", "b")
    desk.push("low", foreign("f"))
    report = desk.json("admin", "fsck")
    assert (report["is_clean"], report["law"]["unclaimed"], report["problems"], report["repairs"]) == (True, 1, [], [])
    out = desk.run("fsck")
    assert "3 produced + 0 adopted = 3" in out
    assert "of these 1 pushed by other programs" in out
    assert desk.json("fsck", "--repair")["repairs"] == []


@pytest.mark.usefixtures("no_pauses")
def test_each_kind_of_damage_is_named_exit_1_and_repaired(desk: Desk) -> None:
    completed(desk, "c")
    enqueue(desk, "a", "b", "lost")
    lose_element(desk)
    report = desk.json("fsck", code=1)
    assert [(p["kind"], p["id"], p["state"]) for p in report["problems"]] == [("lost", "lost", "pending")]
    assert report["law"]["excess"] == 1
    assert "job lost: its record says pending, and it is not there" in desk.run("fsck", code=1)
    assert "reinstated lost: to the front of low" in desk.run("fsck", "--repair")
    assert ids_in(desk, "low") == ["lost", "a", "b"]
    assert desk.json("fsck")["is_clean"]

    lose_record(desk, "b")
    assert [(p["kind"], p["id"]) for p in desk.json("fsck", code=1)["problems"]] == [("unrecorded", "b")]
    assert [(r["action"], r["id"]) for r in desk.json("fsck", "--repair")["repairs"]] == [("recorded", "b")]
    assert record_of(desk, "b").queued == 1

    bend_counter(desk)
    report = desk.json("fsck", code=1)
    assert (report["law"]["excess"], report["problems"]) == (1, [])
    repaired = desk.json("fsck", "--repair")
    assert (repaired["is_clean"], repaired["is_repair"]) == (True, True)
    assert [(r["action"], r["id"]) for r in repaired["repairs"]] == [("counted", "deleted")]
    assert desk.json("fsck") == {**repaired, "is_repair": False, "repairs": []}


@pytest.mark.usefixtures("no_pauses")
def test_a_job_of_a_slot_that_nobody_remembers_goes_back(desk: Desk) -> None:
    running(desk, "a", "w1")
    drop_slot(desk, "w1")
    desk.settings["worker.heartbeat_ttl"] = "3s"  # half of it lies between two looks
    repaired = desk.json("fsck", "--repair")
    assert [(r["action"], r["id"]) for r in repaired["repairs"]] == [("reaped", "a")]
    assert "its slot w1 died" in repaired["repairs"][0]["detail"]
    assert ids_in(desk, "low") == ["a"]
    assert decode(raws_in(desk, "low")[0]).recoveries == 1


def lose_all_elements(desk: Desk) -> None:
    if desk.broker.kind == "redis":
        assert desk.server_client().delete("jobqueue:low_priority") == 1
    else:
        with desk.broker.store.database.transaction() as db:  # type: ignore[attr-defined]
            db.execute("DELETE FROM queued")


@pytest.mark.usefixtures("no_pauses")
def test_a_repair_killed_in_the_middle_and_repeated_puts_back_each_job_once(desk: Desk) -> None:
    ids = names(1500)
    enqueue(desk, *ids)
    lose_all_elements(desk)
    with subprocess.Popen(
        command("fsck", "--repair", settings=desk.settings),
        cwd=desk.directory,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: desk.broker.census().pending["low"] > 0, 30, every_s=0.0005)
        process.send_signal(signal.SIGKILL)
    assert 0 < desk.broker.census(sweep=True).pending["low"] <= 1500
    assert desk.json("fsck", "--repair")["is_clean"]
    assert Counter(ids_in(desk, "low")) == Counter(ids)
    assert desk.broker.census().drift == 0


def test_the_real_program_finds_and_mends(desk: Desk) -> None:
    enqueue(desk, "a")
    settle(desk, burial(claim_one(desk)))
    enqueue(desk, "lost")
    lose_element(desk)
    ended = run("fsck", cwd=desk.directory, settings=desk.settings)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "fileq fsck --repair puts back what it can" in ended.stdout
    mended = run("fsck", "--repair", cwd=desk.directory, settings=desk.settings)
    assert (mended.returncode, mended.stderr) == (0, "")
    assert ids_in(desk, "low") == ["lost"]
