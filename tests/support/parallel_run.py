"""The plugin of `make test`: spreads the tests over several processes and measures the coverage in each of them.

It must never measure the programs that tests start: that would make them a quarter slower. A killed run leaves
.coverage.* files behind; the next `make test` removes them.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from coverage import Coverage
from xdist.scheduler import LoadScopeScheduling

MEASUREMENT = pytest.StashKey[Coverage]()
# Tests in these directories wait for programs; all others are short.
LONG_FIRST = ("tests/chaos/", "tests/integration/")
# The class of a verb and, as the first parameter, the kind of broker: they share no state.
CONFORMANCE_GROUP = re.compile(r"tests/conformance/[^:]+(::.*)?::[^\[]+(?:\[(?P<kind>[a-z]+))?")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measure-coverage", action="store_true", help="write a .coverage.* file for each test process")


def pytest_configure(config: pytest.Config) -> None:
    """Starts the measurement, before any test module imports fileq."""
    runs_tests = hasattr(config, "workerinput") or not config.getoption("tx", None)
    if config.getoption("--measure-coverage") and runs_tests:
        config.stash[MEASUREMENT] = Coverage()
        config.stash[MEASUREMENT].start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if MEASUREMENT in config.stash:
        config.stash[MEASUREMENT].stop()
        config.stash[MEASUREMENT].save()


class GroupScheduling(LoadScopeScheduling):
    """Gives each group of tests to one process, in the order of collection.

    A group is a file, because the scenarios of a file run at the same time in one process. A conformance file is
    divided further, by verb and kind of broker."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if found := CONFORMANCE_GROUP.match(nodeid):
        return f"{file}{found[1] or ''}[{found['kind'] or ''}]"
    return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the long groups first, so that short ones fill the end of the run and no process works alone there."""
    items.sort(key=lambda item: [not item.nodeid.startswith(directory) for directory in LONG_FIRST])
