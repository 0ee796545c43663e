"""Every conformance test runs on every broker: memory, SQLite, Valkey and Redis."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fileq.testing.conformance import Harness, OpenHarness
from fileq.testing.conformance.harness import MakeHarness, harness_maker
from tests.conformance.harness import KINDS, SERVER_KINDS
from tests.conformance.harness import open_harness as open_harness_of
from tests.conftest import ServerPool, require
from tests.support.servers import Server, available_servers


@pytest.fixture(params=KINDS, scope="session")
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def server(kind: str, server_pool: ServerPool) -> Iterator[Server | None]:
    """The server of this kind of broker. It is not cleared for each test: every harness has its own prefix."""
    if kind not in SERVER_KINDS:
        yield None
        return
    binary = require("redis-server", available_servers()[kind])
    yield from server_pool.lend(f"conformance-{kind}", lambda: Server(binary))


@pytest.fixture
def database_directory() -> Iterator[Path]:
    """A directory in memory if the machine has one, because thousands of synced transactions would test the disk.

    The tests of the SQLite broker check that transactions are synced, and what a kill leaves."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="fileq-", dir=in_memory) as directory:
        yield Path(directory)


@pytest.fixture
def open_harness(kind: str, database_directory: Path, server: Server | None) -> OpenHarness:
    return partial(open_harness_of, kind, directory=database_directory, server=server)


@pytest.fixture
def make_harness(open_harness: OpenHarness) -> Iterator[MakeHarness]:
    with harness_maker(open_harness) as make:
        yield make


@pytest.fixture
def harness(make_harness: MakeHarness) -> Harness:
    return make_harness()
