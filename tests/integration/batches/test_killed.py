"""Workers are killed and the server is restarted while batches are filled and run: every batch finishes, and every
callback exists once. `make soak SOAK=Batches` does it with 20 batches of 500 jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.batch_storm import storm
from tests.support.parallel_scenarios import setup_with_own_server
from tests.support.worker_setup import open_worker_setup


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_every_batch_finishes_and_every_callback_exists_once(tmp_path: Path, kind: str) -> None:
    with open_worker_setup(tmp_path, {"sqlite.path": str(tmp_path / "fileq.db")}) as setup:
        if kind == "sqlite":
            figures = storm(setup, batches=3, jobs=60, workers=2, seed=5)
        else:
            with setup_with_own_server(setup) as (server, own):
                figures = storm(own, batches=3, jobs=60, workers=2, seed=5, server=server)
    assert (figures.dead, figures.callbacks) == (2, 6)
    assert figures.kills + figures.restarts >= 3
