"""`fileq admin fsck`, on both brokers. tests/conformance/test_fsck_*.py have every kind of damage."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from datetime import UTC, datetime

import pytest

from fileq.commands.admin.fsck import check
from fileq.core.job import decode
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
from tests.support.command_line import CommandLine
from tests.support.program import command, environment, run
from tests.support.waiting import wait_until

NOW = datetime.now(UTC)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between the two checks: nothing else changes the broker in these tests."""
    monkeypatch.setattr(check, "PAUSE_S", 0.0)


def lose_element(shell: CommandLine) -> None:
    if shell.broker.kind == "redis":
        assert shell.server_client().lpop("jobqueue:low_priority") is not None
    else:
        shell.execute("DELETE FROM queued WHERE position = (SELECT max(position) FROM queued WHERE queue = 'low')")


def lose_record(shell: CommandLine, id: str) -> None:
    if shell.broker.kind == "redis":
        assert shell.server_client().delete(f"jobqueue:job:{id}") == 1
    else:
        shell.execute("DELETE FROM records WHERE id = ?", id)


def change_counter(shell: CommandLine) -> None:
    if shell.broker.kind == "redis":
        shell.server_client().hincrby("jobqueue:stats", "completed", -1)
    else:
        shell.execute("UPDATE stats SET value = value - 1 WHERE name = 'completed'")


def drop_slot(shell: CommandLine, slot: str) -> None:
    """Removes the registry entry and the heartbeat."""
    if shell.broker.kind == "redis":
        client = shell.server_client()
        assert client.hdel("jobqueue:workers", slot) == client.delete(f"jobqueue:processing:worker:{slot}") == 1
    else:
        shell.execute("UPDATE slots SET info = NULL, alive_until_ms = 0 WHERE slot = ?", slot)


@pytest.mark.usefixtures("no_pauses")
def test_a_clean_system_is_exit_0(shell: CommandLine) -> None:
    assert "clean: checked 0 elements, 0 records, 0 slots" in shell.run("fsck")
    completed(shell, "c")
    enqueue(shell, "a", "b")
    shell.push("low", foreign("f"))
    report = shell.json("admin", "fsck")
    assert (report["is_clean"], report["balance"]["unclaimed"], report["problems"], report["repairs"]) == (
        True,
        1,
        [],
        [],
    )
    out = shell.run("fsck")
    assert "3 enqueued + 0 adopted = 3" in out
    assert "pending includes 1 pushed by other programs" in out
    assert shell.json("fsck", "--repair")["repairs"] == []


@pytest.mark.usefixtures("no_pauses")
def test_each_kind_of_damage_is_named_exit_1_and_repaired(shell: CommandLine) -> None:
    completed(shell, "c")
    enqueue(shell, "a", "b", "lost")
    lose_element(shell)
    report = shell.json("fsck", code=1)
    assert [(p["kind"], p["id"], p["detail"]) for p in report["problems"]] == [("lost", "lost", "pending")]
    assert report["balance"]["excess"] == 1
    assert "job lost: its record says pending, but it was not found there" in shell.run("fsck", code=1)
    assert "restored lost: to the front of low" in shell.run("fsck", "--repair")
    assert ids_in(shell, "low") == ["lost", "a", "b"]
    assert shell.json("fsck")["is_clean"]

    lose_record(shell, "b")
    assert [(p["kind"], p["id"]) for p in shell.json("fsck", code=1)["problems"]] == [("unrecorded", "b")]
    assert [(r["action"], r["id"]) for r in shell.json("fsck", "--repair")["repairs"]] == [("recorded", "b")]
    assert record_of(shell, "b").queued == 1

    change_counter(shell)
    report = shell.json("fsck", code=1)
    assert (report["balance"]["excess"], report["problems"]) == (1, [])
    repaired = shell.json("fsck", "--repair")
    assert (repaired["is_clean"], repaired["is_repair"]) == (True, True)
    assert [(r["action"], r["id"]) for r in repaired["repairs"]] == [("counted", "deleted")]
    assert shell.json("fsck") == {**repaired, "is_repair": False, "repairs": []}


@pytest.mark.usefixtures("no_pauses")
def test_a_job_of_a_slot_without_registration_returns_to_its_queue(shell: CommandLine) -> None:
    running(shell, "a", "w1")
    drop_slot(shell, "w1")
    shell.settings["worker.heartbeat_ttl"] = "3s"  # fsck waits half of it between its two checks
    repaired = shell.json("fsck", "--repair")
    assert [(r["action"], r["id"]) for r in repaired["repairs"]] == [("reaped", "a")]
    assert "its slot w1 died" in repaired["repairs"][0]["detail"]
    assert ids_in(shell, "low") == ["a"]
    assert decode(raws_in(shell, "low")[0]).recoveries == 1


def lose_all_elements(shell: CommandLine) -> None:
    if shell.broker.kind == "redis":
        assert shell.server_client().delete("jobqueue:low_priority") == 1
    else:
        with shell.broker.store.database.transaction() as db:  # type: ignore[attr-defined]
            db.execute("DELETE FROM queued")


@pytest.mark.usefixtures("no_pauses")
def test_a_repair_that_is_killed_and_repeated_restores_each_job_once(shell: CommandLine) -> None:
    ids = names(1500)
    enqueue(shell, *ids)
    lose_all_elements(shell)
    with subprocess.Popen(
        command("fsck", "--repair", settings=shell.settings),
        cwd=shell.directory,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: shell.broker.census().pending["low"] > 0, 30, every_s=0.0005)
        process.send_signal(signal.SIGKILL)
    assert 0 < shell.broker.census(sweep=True).pending["low"] <= 1500
    assert shell.json("fsck", "--repair")["is_clean"]
    assert Counter(ids_in(shell, "low")) == Counter(ids)
    assert shell.broker.census().drift == 0


def test_the_real_program_finds_and_repairs_damage(shell: CommandLine) -> None:
    enqueue(shell, "a")
    settle(shell, burial(claim_one(shell)))
    enqueue(shell, "lost")
    lose_element(shell)
    ended = run("fsck", cwd=shell.directory, settings=shell.settings)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "to repair: 'fileq fsck --repair'" in ended.stdout
    repaired = run("fsck", "--repair", cwd=shell.directory, settings=shell.settings)
    assert (repaired.returncode, repaired.stderr) == (0, "")
    assert ids_in(shell, "low") == ["lost"]


def test_a_wrong_option_is_one_line(shell: CommandLine) -> None:
    assert "unknown option '--rpair'" in shell.fail("fsck", "--rpair", code=2)


@pytest.mark.usefixtures("no_pauses")
def test_a_job_that_fsck_buries_has_its_on_dead(shell: CommandLine) -> None:
    running(shell, "a", "w1")
    drop_slot(shell, "w1")
    shell.settings |= {"worker.heartbeat_ttl": "3s", "worker.max_recoveries": 0}
    route = '{{match: "**/*", use: "{}", on_dead: told}}'
    shell.settings |= {"handlers": f"[{route.format('nowhere:handler')}]", "worker.allowed_roots": "[/data]"}
    assert ids_in(shell, "dead_letter") == []
    shell.run("fsck", "--repair", code=2)
    assert ids_in(shell, "dead_letter") == [], "without the routes it changes nothing"
    shell.settings["handlers"] = f"[{route.format('fileq.handlers:checksum')}]"
    assert [repair["action"] for repair in shell.json("fsck", "--repair")["repairs"]] == ["reaped"]
    assert ids_in(shell, "dead_letter") == ["a"]
    [told] = map(decode, raws_in(shell, "low"))
    assert (told.type, told.parent_id, told.payload_value["id"]) == ("told", "a", "a")
    assert shell.json("fsck")["is_clean"]
