"""`--one-kind`, for a run of all tests: a test that looks the same on every broker runs on one kind of it only.

The commands, the messages and most of a worker do not know which broker they use, and the conformance tests prove that
brokers agree. What loses or doubles jobs if it is wrong, such as kills, follow-ups, batches, schedules and webhooks,
always runs on SQLite and on a server. Without the option every test runs on every kind.
"""

from __future__ import annotations

import zlib
from fnmatch import fnmatchcase

import pytest

from tests.support.servers import available_servers

# Fixtures whose parameter is the kind of broker.
FIXTURES = ("each_setup", "broker_setup", "redis_server", "kind")
# On SQLite or on a server; on Valkey or on Redis.
ALTERNATING = tuple(
    f"tests/integration/{name}.py"
    for name in (
        "cli/*",
        "observe/*",
        "producer/test_file_identity",
        "producer/test_files",
        "producer/test_once",
        "producer/test_running",
        "redis/*",
        "worker/test_after",
        "worker/test_files",
        "worker/test_foreign_jobs",
        "worker/test_limits",
        "worker/test_moved",
        "worker/test_output*",
        "worker/test_reload",
        "worker/test_results",
        "worker/test_roots",
        "worker/test_too_long_jobs",
        "worker/test_tracebacks",
        "worker/test_versions",
    )
)
CONFORMANCE = "tests/conformance/*"
# Of the conformance tests, which all run on Valkey, one in so many runs on Redis too. Both run the same scripts.
ONE_IN = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-kind", action="store_true", help="run tests of no particular broker on one kind of it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--one-kind"):
        return
    has_redis = available_servers()["redis"] is not None
    left_out = [item for item in items if not _is_wanted(item, has_redis=has_redis)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        unwanted = set(left_out)
        items[:] = [item for item in items if item not in unwanted]


def _is_wanted(item: pytest.Item, *, has_redis: bool) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    kind = next((str(parameters[name]) for name in FIXTURES if name in parameters), None)
    is_pair_of_servers = "redis_server" in parameters
    return kind is None or is_wanted(item.nodeid, kind, is_pair_of_servers=is_pair_of_servers, has_redis=has_redis)


def is_wanted(nodeid: str, kind: str, *, is_pair_of_servers: bool, has_redis: bool) -> bool:
    """Whether a test that runs on this kind of broker, and on others, is part of a run of all tests.

    The name of a test decides, so that all test processes and all runs decide alike."""
    file, _, test = nodeid.partition("::")
    name, _, parameters = test.partition("[")
    number = zlib.crc32(f"{name}[{parameters.replace(kind, '')}".encode())
    if fnmatchcase(file, CONFORMANCE):
        return kind != "redis" or number % ONE_IN == 0
    if not any(fnmatchcase(file, pattern) for pattern in ALTERNATING):
        return True
    if is_pair_of_servers and not has_redis:
        return kind != "redis"  # its test would be skipped
    return (kind == "redis") == (number % 2 == 0)
