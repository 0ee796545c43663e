"""Brokers for the real program."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ServerPool
from tests.support.command_line import CommandLine
from tests.support.container import Image, Pod
from tests.support.doctor import Doctor
from tests.support.producer_setup import Place
from tests.support.program import REPOSITORY, environment
from tests.support.servers import Server, available_servers
from tests.support.worker_setup import Farm, farm_on


def sqlite_place(directory: Path) -> Place:
    return Place("sqlite", directory, {"sqlite.path": str(directory / "fileq.db")})


def redis_place(directory: Path, server: Server) -> Place:
    return Place("redis", directory, {"redis.addr": server.address})


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Place:
    """For what does not depend on the broker."""
    return sqlite_place(tmp_path)


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path, server_pool: ServerPool) -> Iterator[Place]:
    """An empty broker of each kind; Valkey stands for Redis, which the conformance tests have compared."""
    if request.param == "sqlite":
        yield sqlite_place(tmp_path)
        return
    binary = available_servers()["valkey"]
    assert binary is not None
    for server in server_pool.lend("valkey", lambda: Server(binary)):
        yield redis_place(tmp_path, server)


@pytest.fixture
def valkey(server_pool: ServerPool) -> Iterator[Server]:
    """An empty server, where it does not matter which."""
    binary = available_servers()["valkey"]
    assert binary is not None
    yield from server_pool.lend("valkey", lambda: Server(binary))


@pytest.fixture
def farm(tmp_path: Path, valkey: Server) -> Iterator[Farm]:
    """A broker on a real server, with handlers that tell what they do."""
    with farm_on(tmp_path, {"redis.addr": valkey.address}) as farm:
        yield farm


@pytest.fixture
def sqlite_farm(tmp_path: Path) -> Iterator[Farm]:
    with farm_on(tmp_path, {"sqlite.path": str(tmp_path / "fileq.db")}) as farm:
        yield farm


@pytest.fixture(params=["sqlite", "redis"])
def each_farm(request: pytest.FixtureRequest, tmp_path: Path) -> Farm:
    """Once on each kind of broker."""
    farm: Farm = request.getfixturevalue("farm" if request.param == "redis" else "sqlite_farm")
    return farm


@pytest.fixture
def shell(each_farm: Farm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line, in this process, on each kind of broker; nothing in the environment configures it."""
    prefixes = ("FILEQ_", "REDIS_", "WORKER_", "PRODUCER_", "OBSERVABILITY_", "SQLITE_")
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(each_farm.directory)
    return CommandLine(each_farm, capsys)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """What the Dockerfile makes."""
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
