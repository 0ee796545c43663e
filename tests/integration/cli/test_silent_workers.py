"""How `fileq stats` and `fileq workers` show a worker that no longer renews its heartbeat, or whose process is gone."""

from __future__ import annotations

import re
from typing import Any

from tests.support.command_line import CommandLine
from tests.support.program import Program
from tests.support.waiting import wait_until


def test_a_worker_that_was_killed_is_gone_at_once(shell: CommandLine) -> None:
    """Its heartbeat would last for ten minutes."""
    with Program("worker", cwd=shell.directory, settings={**shell.settings, "worker.heartbeat_ttl": "10m"}) as worker:
        [process] = wait_until(lambda: shell.json("workers")["workers"], 20, "a registered worker")
        assert process["is_alive"]
        worker.kill()
        for command in ("workers", "stats"):
            [process] = shell.json(command)["workers"]
            assert (process["is_alive"], process["is_silent"]) == (False, True)
            assert re.search(r" gone +\d+s ago ", shell.run(command))
        assert f"of {process['slots']} slots, 0 alive (with a heartbeat)" in shell.run("stats")


def test_a_worker_that_is_frozen_is_silent_since_its_last_heartbeat(shell: CommandLine) -> None:
    with Program("worker", cwd=shell.directory, settings={**shell.settings, "worker.heartbeat_ttl": "12s"}) as worker:
        [process] = wait_until(lambda: shell.json("workers")["workers"], 20, "a registered worker")
        assert (process["is_alive"], process["is_silent"], process["heartbeat_ttl_s"]) == (True, False, 12.0)
        assert 0 <= process["heartbeat_age_s"] < 12
        assert re.search(r" alive +\ds ago ", shell.run("workers"))
        assert f"of {process['slots']} slots, {process['slots']} alive (with a heartbeat)" in shell.run("stats")
        shell.setup.freeze(worker)

        def silent() -> Any:
            [process] = shell.json("stats")["workers"]
            return process if process["is_silent"] else None

        process = wait_until(silent, 30, "a silent worker", every_s=0.1)
        assert process["is_alive"], "its lease has not ended"
        assert 4 < process["heartbeat_age_s"] < 12
        assert re.search(r" silent for \d+s +\d+s ago ", shell.run("stats"))
        wait_until(lambda: not shell.json("workers")["workers"][0]["is_alive"], 30, "the end of its lease", every_s=0.1)
        [process] = shell.json("workers")["workers"]
        assert (process["is_silent"], process["heartbeat_age_s"]) == (True, None)
        assert re.search(r" silent +over 12s ago ", shell.run("workers"))
    quick = {**shell.settings, "worker.heartbeat_ttl": "3s", "worker.reap_interval": "1s"}
    with Program("worker", cwd=shell.directory, settings=quick):
        [lost] = wait_until(lambda: shell.json("workers")["lost"], 30, "a note of its reaper", every_s=0.1)
        assert (lost["pid"], lost["jobs"]) == (process["pid"], 0)
        assert lost["is_gone"], "the test has killed it"
        assert f"lost: {lost['host']} {lost['pid']}, its process was gone at " in shell.run("workers")
