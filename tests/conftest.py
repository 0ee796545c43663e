"""Real servers for tests: each test process starts a server once and clears it for each test.

Without a server its tests are skipped, with the name of the package to install. In CI every skip is a failure.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from fileq.handlers.extensions import EXTENSIONS
from fileq.handlers.registry import REGISTRY
from tests.support.servers import Certificates, Cluster, Sentinel, Server, available_servers, make_certificates
from tests.support.warm_programs import LAUNCHER

pytest_plugins = ["tests.support.one_kind", "tests.support.parallel_run"]

# No time limit for one example: a busy machine is no defect.
settings.register_profile("fileq", deadline=None)
settings.load_profile("fileq")

IN_CI = os.environ.get("CI", "").lower() in ("true", "1")
SIGNAL_ACTIONS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
S = TypeVar("S", Server, Sentinel, Cluster)


def require(program: str, path: str | None) -> str:
    """Returns `path`; if it is None, skips the test, or fails it in CI."""
    if path is not None:
        return path
    reason = f"{program} is not on PATH: apt-get install {program}"
    if IN_CI:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_runtest_setup() -> None:
    """Sets the signals to what a program started from a terminal gets: programs that the test starts inherit them.

    A shell makes its background jobs ignore SIGINT, nohup makes programs ignore SIGHUP, and a command that an earlier
    test ran in this process ignores all three since it ended."""
    for number, action in SIGNAL_ACTIONS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)


@pytest.fixture(autouse=True)
def _own_registrations(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test sees the decorated functions of its own module and of those it imports from. What other tests register in
    this process would become routes, hooks and middleware of this one."""
    values = vars(request.module).values()
    own = {request.module.__name__, *(getattr(value, "__module__", "") for value in values)}
    own |= {getattr(value, "__name__", "") for value in values}
    registered = tuple(REGISTRY)
    REGISTRY.reset(one for one in registered if one.function.__module__ in own)
    tables = [EXTENSIONS.middleware, EXTENSIONS.hooks, EXTENSIONS.before_enqueue]
    before: list[dict[Any, Any]] = [dict(table) for table in tables]
    for table in tables:
        for name in [name for name, entry in table.items() if entry.function.__module__ not in own]:
            del table[name]
    yield
    REGISTRY.reset(registered)
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


def redis_binary() -> str:
    return require("redis-server", available_servers()["redis"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Includes the skips that `require` did not decide: those of modules, marks and libraries. Only the controller of
    # several test processes has a terminal reporter.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if IN_CI and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("skipped tests are failures in CI", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    LAUNCHER.close()


class ServerPool:
    """The servers of this test process by name; each is started at its first use."""

    def __init__(self) -> None:
        self._started: dict[str, Any] = {}

    def lend(self, name: str, make: Callable[[], S]) -> Iterator[S]:
        """Yields the server of this name, cleared; replaces one that a test left broken."""
        server = self._started.get(name)
        if server is None or not server.is_usable():
            self.close(name)
            server = self._started[name] = make().__enter__()
        server.reset()
        yield server
        server.close_clients()
        print(server.log_tail())  # captured: pytest shows it when the test failed

    def close(self, name: str) -> None:
        if name in self._started:
            self._started.pop(name).close()

    def close_all(self) -> None:
        for name in list(self._started):
            self.close(name)


@pytest.fixture(scope="session")
def server_pool() -> Iterator[ServerPool]:
    pool = ServerPool()
    yield pool
    pool.close_all()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl", shutil.which("openssl"))
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["valkey", "redis"])
def redis_server(request: pytest.FixtureRequest, server_pool: ServerPool) -> Iterator[Server]:
    """An empty server: Valkey, then Redis."""
    binary = require("redis-server", available_servers()[request.param])
    yield from server_pool.lend(request.param, lambda: Server(binary))


@pytest.fixture
def tls_server(server_pool: ServerPool, request: pytest.FixtureRequest) -> Iterator[Server]:
    """An empty Redis that accepts only TLS with a client certificate; `tls_server.tls` names the files."""
    binary = redis_binary()
    certificates = request.getfixturevalue("certificates")
    yield from server_pool.lend("tls", lambda: Server(binary, tls=certificates))


@pytest.fixture
def sentinel(server_pool: ServerPool) -> Iterator[Sentinel]:
    """A master, a replica and three sentinels, empty."""
    binary = redis_binary()
    yield from server_pool.lend("sentinel", lambda: Sentinel(binary))


@pytest.fixture
def cluster(server_pool: ServerPool) -> Iterator[Cluster]:
    """Three masters, empty."""
    binary = redis_binary()
    yield from server_pool.lend("cluster", lambda: Cluster(binary))
