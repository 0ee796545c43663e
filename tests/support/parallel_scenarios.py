"""Scenarios that mostly wait, for example until a heartbeat expires, run at the same time; each is a test of its own.

All scenarios of a file must run in one test process: tests/support/parallel_run.py keeps a file together.
"""

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
    """Makes a test of a scenario for each kind (valkey, redis, sqlite); the scenarios of a module run together."""

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
    """The path of the server's program; if it is missing, the test is skipped, or fails in CI."""
    return require(f"{kind}-server", available_servers()[kind])


@pytest.fixture(scope="module")
def running_scenarios(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Starts every selected scenario of this module."""
    names = [item.name for item in request.session.items if item.path == request.path and item.name in _SCENARIOS]
    binaries = {kind: binary for kind, binary in available_servers().items() if binary is not None}
    with contextlib.ExitStack() as stack:
        servers = {
            kind: stack.enter_context(Server(binary))
            for kind, binary in binaries.items()
            if any(_SCENARIOS[name][0] == kind for name in names)
        }
        pool = stack.enter_context(ThreadPoolExecutor(len(names)))
        databases = {kind: itertools.count() for kind in servers}  # each scenario has a database of its own
        futures: dict[str, Future[None]] = {}
        for name in names:
            kind, scenario = _SCENARIOS[name]
            directory = tmp_path_factory.mktemp("scenario")
            if kind == SQLITE:
                settings: dict[str, object] = {"sqlite.path": str(directory / "fileq.db")}
            elif kind in servers:
                settings = {"redis.addr": servers[kind].address, "redis.db": next(databases[kind])}
            else:
                continue  # the test reports the missing server
            futures[name] = pool.submit(_run, scenario, kind, directory, settings)
        yield futures


def _run(scenario: Scenario, kind: str, directory: Path, settings: dict[str, object]) -> None:
    try:
        with open_worker_setup(directory, settings, kind=kind) as setup:
            scenario(setup)
    except BaseException as error:
        # pytest would show what this thread prints with another test, so the logs go into the error.
        for log in sorted(directory.rglob("program-*.log")):
            error.add_note(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
        raise


@contextlib.contextmanager
def setup_with_own_server(setup: WorkerSetup) -> Iterator[tuple[Server, WorkerSetup]]:
    """A second setup on a server of its own that writes everything to disk."""
    directory = setup.directory / "own-server"
    directory.mkdir()
    with (
        Server(server_binary(setup.kind), aof=True) as server,
        open_worker_setup(directory, {"redis.addr": server.address}, kind=setup.kind) as other,
    ):
        yield server, other
