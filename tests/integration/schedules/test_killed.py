"""Workers are killed and the server is restarted while a schedule is due every second: each second fires once, or is
counted as missed. `make soak SOAK=Schedules` does it with ten workers for a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.parallel_scenarios import setup_with_own_server
from tests.support.schedule_kills import fire_each_second
from tests.support.worker_setup import WorkerSetup, open_worker_setup

WORKERS, SECONDS = 4, 8.0


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_every_second_fires_once_or_is_missed(tmp_path: Path, kind: str) -> None:
    with open_worker_setup(tmp_path, {"sqlite.path": str(tmp_path / "fileq.db")}) as setup:
        if kind == "sqlite":
            _check(setup, None)
        else:
            with setup_with_own_server(setup) as (server, own):
                _check(own, server)


def _check(setup: WorkerSetup, server: object) -> None:
    figures = fire_each_second(setup, WORKERS, SECONDS, seed=3, server=server)  # type: ignore[arg-type]
    assert figures.fired >= SECONDS / 2, figures
    assert figures.kills > 5, figures
    assert server is None or figures.restarts, figures
