"""`fileq stats` shows the producers: alive, held by the rate limit, their last scan."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from tests.support.producer_setup import BrokerSetup
from tests.support.program import Program, run
from tests.support.waiting import wait_until

LEASE = {"worker__heartbeat_ttl": "3s"}  # the shortest that the configuration accepts


def stats(setup: BrokerSetup, *arguments: str) -> str:
    ended = run("stats", *arguments, cwd=setup.directory, settings=setup.settings)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def shown(setup: BrokerSetup) -> list[dict[str, Any]]:
    return list(json.loads(stats(setup, "--json"))["producers"])


def wait_reported(setup: BrokerSetup, state: str) -> None:
    with setup.open() as broker:
        wait_until(lambda: [view.info.state for view in broker.producers()] == [state], what=f"a producer is {state}")


def wait_enqueued(setup: BrokerSetup, count: int) -> None:
    with setup.open() as broker:
        wait_until(lambda: [view.info.enqueued for view in broker.producers()] == [count], what=f"{count} reported")


def test_a_producer_is_shown_with_its_last_scan_until_it_stops(broker_setup: BrokerSetup) -> None:
    for name in ("a", "b/c", "x.tmp"):
        broker_setup.write(name)
    with broker_setup.producer(**LEASE) as program:
        wait_enqueued(broker_setup, 2)
        wait_reported(broker_setup, "watching")
        [one] = shown(broker_setup)
        assert (one["pid"], one["roots"]) == (program.process.pid, [str(broker_setup.inbox)])
        assert (one["state"], one["held_by"], one["held_since"], one["problem"]) == ("watching", "", None, "")
        assert (one["last_scan"]["found"], one["last_scan"]["is_complete"]) == (2, True)
        assert one["started_at"] <= one["last_scan"]["started_at"] <= one["last_scan"]["ended_at"]
        assert one["waiting"] == 0
        text = stats(broker_setup)
        assert "ago: 2 files" in text
        assert f"scans {broker_setup.inbox}" in text
        assert one["last_scan"]["skipped"] == {"excluded": 1}
        assert "  skipped 1 excluded; for the reason: 'fileq trace PATH'" in text
        assert program.stop() == 0
        assert shown(broker_setup) == []
        assert "no producers" in stats(broker_setup)


def test_a_producer_held_by_the_rate_limit_says_so_and_disappears_after_a_kill(broker_setup: BrokerSetup) -> None:
    for n in range(200):
        broker_setup.write(str(n))
    with broker_setup.producer(rate_limit_per_sec=1, **LEASE) as program, broker_setup.open() as broker:
        wait_reported(broker_setup, "held")
        [one] = shown(broker_setup)
        assert (one["state"], one["held_by"]) == ("held", "producer.rate_limit_per_sec")
        assert one["started_at"] <= one["held_since"]
        assert one["waiting"] > 100
        text = stats(broker_setup)
        assert "held by producer.rate_limit_per_sec for " in text
        assert " files wait" in text
        os.kill(program.process.pid, signal.SIGKILL)
        program.wait()
        assert len(broker.producers()) == 1, "its lease has not ended yet"
        wait_until(lambda: not broker.producers(), what="the lease ends")
        assert shown(broker_setup) == []


def test_a_producer_of_this_machine_that_was_killed_is_gone_at_once(broker_setup: BrokerSetup) -> None:
    with broker_setup.producer(worker__heartbeat_ttl="10m") as program:
        wait_reported(broker_setup, "watching")
        assert [one["state"] for one in shown(broker_setup)] == ["watching"]
        program.kill()
        assert [one["state"] for one in shown(broker_setup)] == ["gone"]
        assert re.search(rf" {program.process.pid} +gone ", stats(broker_setup))


def test_the_producer_of_role_all_is_shown_beside_its_worker(on_sqlite: BrokerSetup) -> None:
    on_sqlite.write("a")
    settings = on_sqlite.all_settings(**LEASE)
    with Program("all", str(on_sqlite.inbox), cwd=on_sqlite.directory, settings=settings) as all_:
        wait_enqueued(on_sqlite, 1)
        found = json.loads(stats(on_sqlite, "--json"))
        assert [one["pid"] for one in (*found["producers"], *found["workers"])] == [all_.process.pid] * 2
        assert all_.stop() == 0
        assert shown(on_sqlite) == []


def test_a_missing_scan_dir_is_shown(on_sqlite: BrokerSetup) -> None:
    with on_sqlite.producer(**LEASE):
        wait_reported(on_sqlite, "watching")
        on_sqlite.inbox.rename(on_sqlite.directory / "aside")
        wait_reported(on_sqlite, "lost")
        [one] = shown(on_sqlite)
        assert str(on_sqlite.inbox) in one["problem"]
        assert one["problem"] in stats(on_sqlite)


def test_a_scan_of_one_run_is_removed_at_its_end(on_sqlite: BrokerSetup, tmp_path: Path) -> None:
    for n in range(3):
        on_sqlite.write(str(n))
    program = Program(
        *("producer", str(on_sqlite.inbox), "--once"),
        cwd=on_sqlite.directory,
        settings=on_sqlite.all_settings(rate_limit_per_sec=1, **LEASE),
        wait=False,
    )
    with program:
        wait_until((tmp_path / "fileq.db").exists)
        wait_reported(on_sqlite, "held")
        assert program.wait() == 0
        assert shown(on_sqlite) == []
