"""How the tests are spread over several processes."""

import pytest

from tests.support.parallel_run import group_of


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/unit/test_job.py::test_a[x::y-1]", "tests/unit/test_job.py"),
        ("tests/integration/test_a.py::TestA::test_b", "tests/integration/test_a.py"),
        ("tests/conformance/b.py::TestB::TestC::test_d[redis-e::f]", "tests/conformance/b.py::TestB::TestC[redis]"),
        ("tests/conformance/b.py::TestB::TestC::test_d[sqlite]", "tests/conformance/b.py::TestB::TestC[sqlite]"),
        ("tests/conformance/test_fsck.py::test_c[memory-high]", "tests/conformance/test_fsck.py::[memory]"),
        ("tests/conformance/test_fsck.py::test_c", "tests/conformance/test_fsck.py::[]"),
    ],
)
def test_a_file_stays_together_and_conformance_tests_are_divided_by_verb_and_broker(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group
