"""While one client does its worst, probes of server and worker are answered and jobs go on. `make siege` does it for
minutes, and measures."""

from __future__ import annotations

from tests.support.siege import besiege
from tests.support.worker_setup import WorkerSetup


def test_probes_are_answered_and_jobs_go_on_while_a_client_does_its_worst(sqlite_setup: WorkerSetup) -> None:
    """H3 and medium, mixed: idle connections, slow headers, endless bodies, unread answers, lists, streams, waits."""
    _, found = besiege(sqlite_setup, seconds=3, clients=200, quiet_s=0, least_jobs=100)
    assert found.probes > 0
    assert found.wrong == []
