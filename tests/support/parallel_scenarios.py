"""Scenarios that mostly wait, for heartbeats to run out and the like, run at the same time; each is its own test."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import require
from tests.support.servers import Server, available_servers
from tests.support.worker_setup import WorkerSetup, open_worker_setup

SCENARIO_TIMEOUT_S = 110.0
SQLITE = "sqlite"

Scenario = Callable[[WorkerSetup], None]
_SCENARIOS: dict[str, tuple[str, Scenario]] = {}


def parallel_scenario(*kinds: str, timeout_s: float = SCENARIO_TIMEOUT_S) -> Callable[[Scenario], Callable[..., None]]:
    """A test on a setup of each kind (valkey, redis, sqlite), under way together with the others of its module."""

    def make(scenario: Scenario) -> Callable[..., None]:
        name = scenario.__name__
        _SCENARIOS.update({f"{name}[{kind}]": (kind, scenario) for kind in kinds})

        def test(kind: str, running_scenarios: Mapping[str, Future[None]]) -> None:
            if kind != SQLITE:
                server_binary(kind)
            running_scenarios[f"{name}[{kind}]"].result(timeout_s)

        test.__name__, test.__doc__ = name, scenario.__doc__
        decorated: Callable[..., None] = pytest.mark.parametrize("kind", kinds)(test)
        return decorated

    return make


def server_binary(kind: str) -> str:
    """Where it is missing the test is skipped, or failed in CI."""
    return require(f"{kind}-server", available_servers()[kind])


@pytest.fixture(scope="module")
def running_scenarios(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Every scenario of this module that was asked for, started."""
    names = [item.name for item in request.session.items if item.path == request.path and item.name in _SCENARIOS]
    binaries = {kind: binary for kind, binary in available_servers().items() if binary is not None}
    with contextlib.ExitStack() as stack:
        servers = {
            kind: stack.enter_context(Server(binary))
            for kind, binary in binaries.items()
            if any(_SCENARIOS[name][0] == kind for name in names)
        }
        pool = stack.enter_context(ThreadPoolExecutor(len(names)))
        databases = {kind: itertools.count() for kind in servers}  # one that nobody else uses, for each
        futures: dict[str, Future[None]] = {}
        for name in names:
            kind, scenario = _SCENARIOS[name]
            directory = tmp_path_factory.mktemp("scenario")
            if kind == SQLITE:
                settings: dict[str, object] = {"sqlite.path": str(directory / "fileq.db")}
            elif kind in servers:
                settings = {"redis.addr": servers[kind].address, "redis.db": next(databases[kind])}
            else:
                continue  # the test says what is missing
            futures[name] = pool.submit(_play, scenario, kind, directory, settings)
        yield futures


def _play(scenario: Scenario, kind: str, directory: Path, settings: dict[str, object]) -> None:
    try:
        with open_worker_setup(directory, settings, kind=kind) as setup:
            scenario(setup)
    except BaseException as error:
        # Whatever is printed in a thread is shown with some other test.
        for log in sorted(directory.rglob("program-*.log")):
            error.add_note(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
        raise


@contextlib.contextmanager
def setup_with_own_server(setup: WorkerSetup) -> Iterator[tuple[Server, WorkerSetup]]:
    """For a scenario that needs a server of its own, with all it was told on disk."""
    directory = setup.directory / "beside"
    directory.mkdir()
    with (
        Server(server_binary(setup.kind), aof=True) as server,
        open_worker_setup(directory, {"redis.addr": server.address}, kind=setup.kind) as other,
    ):
        yield server, other
