"""The plugin of `make test` and `make coverage`: spreads the tests over several processes, and measures in each of them
which lines run.

It must never measure the programs that tests start: that would make them a quarter slower. A killed run leaves
.coverage.* files behind; the next `make coverage` removes them.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from coverage import Coverage
from xdist.scheduler import LoadScopeScheduling

MEASUREMENT = pytest.StashKey[Coverage]()
# Tests in these directories wait for programs; all others are short.
LONG_FIRST = ("tests/chaos/", "tests/integration/")
# These files use the fixture `image`. In one process it is built once.
IMAGE_FILES = tuple(f"tests/integration/deploy/test_{name}.py" for name in ("example", "image", "pods"))
# Measuring makes a test a third slower. These run the same lines as other tests do: on Redis those of the test on
# Valkey, in the state machine and in the crashes between calls those of the tests of each verb. Those of random jobs
# and of all time zones run the lines of the short tests beside them again and again; the rules of the house read files.
NOT_MEASURED = (
    "[redis]",
    "[redis-",
    "::TestStateMachine::",
    "::TestCrash::",
    "::TestCrashFollowUp::",
    "::test_whatever_happens_",
    "_are_those_of_cronsim[",
    "tests/unit/house/test_house_rules.py::",
    "tests/unit/house/test_layers.py::",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measure-coverage", action="store_true", help="write a .coverage.* file for each test process")


def pytest_configure(config: pytest.Config) -> None:
    """Starts the measurement, before any test module imports fileq."""
    runs_tests = hasattr(config, "workerinput") or not config.getoption("tx", None)
    if runs_tests:
        gc.disable()  # until all tests are collected: they are no garbage, and searching them takes seconds
    if config.getoption("--measure-coverage") and runs_tests:
        config.stash[MEASUREMENT] = Coverage()
        config.stash[MEASUREMENT].start()
        # All that runs during the collection is measured here; measuring the collection itself takes seconds.
        import_package("fileq")
        config.stash[MEASUREMENT].stop()


def import_package(name: str) -> None:
    """Imports every module of a package but programs, and but its tests, whose assertions pytest rewrites later."""
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(package.__path__, f"{name}."):
        if module.name in ("fileq.testing", "fileq.__main__"):
            continue
        if module.ispkg:
            import_package(module.name)
        else:
            importlib.import_module(module.name)


def pytest_collection_finish(session: pytest.Session) -> None:
    if MEASUREMENT in session.config.stash:
        session.config.stash[MEASUREMENT].start()
    gc.freeze()
    gc.enable()
    # Tests change modules faster than the time in a bytecode file tells: neither this process nor the programs that
    # tests start may write bytecode of them. The bytecode of fileq is there already, from the Makefile.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def is_measured(nodeid: str) -> bool:
    return not any(mark in nodeid for mark in NOT_MEASURED)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Pauses the measurement during a test that adds nothing to it."""
    measurement = item.config.stash.get(MEASUREMENT, None)
    if measurement is None or is_measured(item.nodeid):
        return (yield)
    measurement.stop()
    try:
        return (yield)
    finally:
        measurement.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if MEASUREMENT in config.stash:
        config.stash[MEASUREMENT].stop()
        config.stash[MEASUREMENT].save()


class GroupScheduling(LoadScopeScheduling):
    """Gives each group of tests to one process, in the order of collection.

    A group is a file, because the scenarios of a file run at the same time in one process. The files that need the
    image are one group. A conformance file is divided further by class, one for each verb, and by its first parameter,
    the kind of broker."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    file, _, test = nodeid.partition("::")
    if file in IMAGE_FILES:
        return "the image"
    if not file.startswith("tests/conformance/"):
        return file
    name, _, parameters = test.partition("[")
    kind = parameters.rstrip("]").partition("-")[0]
    return f"{file}::{name.rpartition('::')[0]}[{kind}]"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the long groups first, so that short ones fill the end of the run and no process works alone there."""
    items.sort(key=lambda item: [not item.nodeid.startswith(directory) for directory in LONG_FIRST])
