"""Scenarios that mostly wait, for heartbeats to run out and the like, run at the same time; each is its own test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.working import Farm, farm_on
from tests.servers import Server, available_servers

SCENARIO_TIMEOUT_S = 110.0


class Grounds:
    """Where one scenario happens: farms of its own, on the module's server or on a file."""

    def __init__(self, directory: Path, server: Server, databases: Iterator[int]) -> None:
        self.directory = directory
        self._server = server
        self._databases = databases

    def redis(self) -> dict[str, object]:
        """The module's server, a database that nobody else uses."""
        return {"redis.addr": self._server.address, "redis.db": next(self._databases)}

    def sqlite(self) -> dict[str, object]:
        return {"sqlite.path": str(self.directory / "fileq.db")}


Scenario = Callable[[Farm], None]
_SCENARIOS: dict[str, tuple[str, Scenario]] = {}


def together(kind: str) -> Callable[[Scenario], Callable[..., None]]:
    """A test on a farm of that kind, under way together with the others of its module."""

    def make(scenario: Scenario) -> Callable[..., None]:
        _SCENARIOS[scenario.__name__] = kind, scenario

        def test(under_way: Mapping[str, Future[None]]) -> None:
            under_way[scenario.__name__].result(SCENARIO_TIMEOUT_S)

        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
        return test

    return make


@pytest.fixture(scope="module")
def under_way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Every scenario of this module that was asked for, started."""
    names = [item.name for item in request.session.items if item.path == request.path and item.name in _SCENARIOS]
    binary = available_servers()["valkey"]
    assert binary is not None
    with Server(binary) as server, ThreadPoolExecutor(len(names)) as pool:
        databases = itertools.count()
        futures: dict[str, Future[None]] = {}
        for name in names:
            kind, scenario = _SCENARIOS[name]
            grounds = Grounds(tmp_path_factory.mktemp(name[:40]), server, databases)
            settings = grounds.sqlite() if kind == "sqlite" else grounds.redis()
            futures[name] = pool.submit(_play, scenario, grounds.directory, settings)
        yield futures


def _play(scenario: Scenario, directory: Path, settings: dict[str, object]) -> None:
    try:
        with farm_on(directory, settings) as farm:
            scenario(farm)
    except BaseException as error:
        # Whatever is printed in a thread is shown with some other test.
        for log in sorted(directory.rglob("program-*.log")):
            error.add_note(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
        raise
