"""Fixtures of the integration tests: brokers for the real program, the command line, images and pods."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerPool
from tests.support.command_line import CommandLine
from tests.support.container import Image, Pod
from tests.support.doctor import Doctor
from tests.support.producer_setup import BrokerSetup
from tests.support.program import REPOSITORY, environment
from tests.support.servers import Server, available_servers
from tests.support.worker_setup import WorkerSetup, open_worker_setup


def sqlite_broker_setup(directory: Path) -> BrokerSetup:
    return BrokerSetup("sqlite", directory, {"sqlite.path": str(directory / "fileq.db")})


def redis_broker_setup(directory: Path, server: Server) -> BrokerSetup:
    return BrokerSetup("redis", directory, {"redis.addr": server.address})


@pytest.fixture
def on_sqlite(tmp_path: Path) -> BrokerSetup:
    """A broker on SQLite, for tests that do not depend on the kind."""
    return sqlite_broker_setup(tmp_path)


@pytest.fixture(params=["sqlite", "redis"])
def broker_setup(request: pytest.FixtureRequest, tmp_path: Path, server_pool: ServerPool) -> Iterator[BrokerSetup]:
    """An empty broker of each kind. Valkey stands for Redis too: the conformance tests run on both."""
    if request.param == "sqlite":
        yield sqlite_broker_setup(tmp_path)
        return
    binary = available_servers()["valkey"]
    assert binary is not None
    for server in server_pool.lend("valkey", lambda: Server(binary)):
        yield redis_broker_setup(tmp_path, server)


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def broker_values(request: pytest.FixtureRequest, server_pool: ServerPool) -> Iterator[dict[str, Any]]:
    """The settings of a broker of each kind, which the tests of a module share. SQLite is what served_api() makes."""
    if request.param == "sqlite":
        yield {}
        return
    binary = available_servers()["valkey"]
    assert binary is not None
    # Not the server of `valkey`, which is cleared for each test.
    for server in server_pool.lend("valkey of a module", lambda: Server(binary)):
        yield {"broker": "redis", "redis": {"addr": server.address}}


@pytest.fixture
def valkey(server_pool: ServerPool) -> Iterator[Server]:
    """An empty server, for tests that do not depend on the kind."""
    binary = available_servers()["valkey"]
    assert binary is not None
    yield from server_pool.lend("valkey", lambda: Server(binary))


@pytest.fixture
def setup(tmp_path: Path, valkey: Server) -> Iterator[WorkerSetup]:
    """A broker on a real server, with handlers that log what they do."""
    with open_worker_setup(tmp_path, {"redis.addr": valkey.address}) as setup:
        yield setup


@pytest.fixture
def sqlite_setup(tmp_path: Path) -> Iterator[WorkerSetup]:
    with open_worker_setup(tmp_path, {"sqlite.path": str(tmp_path / "fileq.db")}) as setup:
        yield setup


@pytest.fixture(params=["sqlite", "redis"])
def each_setup(request: pytest.FixtureRequest, tmp_path: Path) -> WorkerSetup:
    """Once on each kind of broker."""
    setup: WorkerSetup = request.getfixturevalue("setup" if request.param == "redis" else "sqlite_setup")
    return setup


@pytest.fixture
def shell(each_setup: WorkerSetup, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line in this process, on each kind of broker, without environment variables of fileq."""
    prefixes = ("FILEQ_", "REDIS_", "WORKER_", "PRODUCER_", "OBSERVABILITY_", "SQLITE_")
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(each_setup.directory)
    return CommandLine(each_setup, capsys)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image that the Dockerfile builds."""
    image = Image(REPOSITORY / "Dockerfile", context=REPOSITORY, directory=tmp_path_factory.mktemp("image"))
    yield image.build()
    image.remove()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    """A network of its own, for containers."""
    with Pod(tmp_path) as pod:
        yield pod


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with ./data in it; nothing in the environment configures fileq."""
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(capsys)
