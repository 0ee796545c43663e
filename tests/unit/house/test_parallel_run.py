"""How the tests are spread over several processes."""

import os
import sys

import pytest

from tests.support.one_kind import is_wanted
from tests.support.parallel_run import IMAGE_FILES, group_of, is_measured
from tests.support.program import REPOSITORY


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/unit/core/test_job.py::test_a[x::y-1]", "tests/unit/core/test_job.py"),
        ("tests/integration/test_a.py::TestA::test_b", "tests/integration/test_a.py"),
        ("tests/conformance/b.py::TestB::TestC::test_d[redis-e::f]", "tests/conformance/b.py::TestB::TestC[redis]"),
        ("tests/conformance/b.py::TestB::TestC::test_d[sqlite]", "tests/conformance/b.py::TestB::TestC[sqlite]"),
        ("tests/conformance/test_fsck.py::test_c[memory-high]", "tests/conformance/test_fsck.py::[memory]"),
        ("tests/conformance/test_fsck.py::test_c", "tests/conformance/test_fsck.py::[]"),
    ],
)
def test_a_file_stays_together_and_conformance_tests_are_divided_by_verb_and_broker(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


def test_the_files_that_need_the_image_are_one_group() -> None:
    assert {group_of(f"{file}::test_a") for file in IMAGE_FILES} == {"the image"}
    files = sorted((REPOSITORY / "tests/integration").rglob("test_*.py"))
    found = [str(path.relative_to(REPOSITORY)) for path in files if "image: Image" in path.read_text()]
    assert found == list(IMAGE_FILES)


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("tests/conformance/b.py::TestB::test_c[valkey-x]", True),
        ("tests/conformance/b.py::TestB::test_c[redis-x]", False),
        ("tests/integration/test_a.py::test_b[redis]", False),
        ("tests/integration/redis/test_full.py::test_b", True),
        ("tests/conformance/b.py::TestB::TestStateMachine::test_c[sqlite]", False),
        ("tests/conformance/b.py::TestB::TestCrash::test_c[sqlite-x]", False),
        ("tests/unit/core/test_cron.py::test_ten_years_are_those_of_cronsim[UTC]", False),
        ("tests/unit/house/test_layers.py::test_b", False),
        ("tests/unit/core/test_cron.py::test_b", True),
    ],
)
def test_the_coverage_is_measured_where_a_test_adds_to_it(test: str, expected: bool) -> None:
    assert is_measured(test) is expected


def kinds_of(file: str, *kinds: str, has_redis: bool = True) -> set[frozenset[str]]:
    """The combinations of these kinds on which the tests of a file run."""
    is_pair = "sqlite" not in kinds
    names = [f"{file}::test_redis_{number}" for number in range(50)]
    return {
        frozenset(
            kind
            for kind in kinds
            if is_wanted(f"{name}[x-{kind}]", kind, is_pair_of_servers=is_pair, has_redis=has_redis)
        )
        for name in names
    }


def test_with_one_kind_each_test_of_a_command_runs_on_one_broker_and_each_kill_on_both() -> None:
    either = {frozenset({"sqlite"}), frozenset({"redis"})}
    assert kinds_of("tests/integration/cli/test_dlq.py", "sqlite", "redis") == either
    assert kinds_of("tests/integration/worker/test_after_killed.py", "sqlite", "redis") == {frozenset().union(*either)}


def test_with_one_kind_no_test_is_left_without_a_server() -> None:
    file = "tests/integration/redis/test_faults.py"
    assert kinds_of(file, "valkey", "redis") == {frozenset({"valkey"}), frozenset({"redis"})}
    assert kinds_of(file, "valkey", "redis", has_redis=False) == {frozenset({"valkey"})}
    brokers = frozenset({"memory", "sqlite", "valkey"})
    assert kinds_of("tests/conformance/test_brokers.py", *brokers, "redis") == {brokers, brokers | {"redis"}}


def test_tests_and_the_programs_they_start_write_no_bytecode() -> None:
    """They change a module twice within the second that its bytecode file tells apart, and would run the old one."""
    assert sys.dont_write_bytecode
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1"
