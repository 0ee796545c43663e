"""Every test here runs against every broker: `harness` for the defaults, `make_harness` for other settings."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.conformance.harness import KINDS, SERVER_KINDS, Harness, open_harness
from tests.conftest import ServerPool, require
from tests.support.servers import Server, available_servers

MakeHarness = Callable[..., Harness]


@pytest.fixture(params=KINDS, scope="session")
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def server(kind: str, server_pool: ServerPool) -> Iterator[Server | None]:
    """The server this kind of broker needs. Nothing here harms one, so it is not cleared for each test: every
    harness has a prefix of its own."""
    if kind not in SERVER_KINDS:
        yield None
        return
    binary = require("redis-server", available_servers()[kind])
    yield from server_pool.lend(f"conformance-{kind}", lambda: Server(binary))


@pytest.fixture
def database_directory() -> Iterator[Path]:
    """In memory where the machine has such a place: thousands of short transactions, each synced to the disk, would
    test the disk. That they are synced, and what a kill leaves, is for the tests of the SQLite broker itself."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="fileq-", dir=in_memory) as directory:
        yield Path(directory)


@pytest.fixture
def make_harness(kind: str, database_directory: Path, server: Server | None) -> Iterator[MakeHarness]:
    """make_harness(**{"worker.completed_max": 5}): an empty broker with these settings; closed after the test."""
    with ExitStack() as stack:

        def make(**overrides: Any) -> Harness:
            harness = open_harness(kind, overrides, directory=database_directory, server=server)
            return stack.enter_context(closing(harness))

        yield make


@pytest.fixture
def harness(make_harness: MakeHarness) -> Harness:
    return make_harness()
