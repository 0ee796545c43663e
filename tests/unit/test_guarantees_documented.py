"""docs/guarantees.md lists the guards that `make mutants` breaks, and each guard is about code and a test of now."""

import pytest

from fileq.testing.conformance import BrokerConformance
from tests.mutants import PAGE, ROOT, with_table
from tests.support.guards import GUARDS, Guard
from tests.support.guards.guard import SUITE


def name_of(guard: Guard) -> str:
    return f"{guard.file}: {guard.guarantee}"


def test_the_page_has_the_table_of_now():
    page = (ROOT / PAGE).read_text()
    assert page == with_table(page), "run make docs"


@pytest.mark.parametrize("guard", GUARDS, ids=name_of)
def test_a_guard_is_a_line_that_occurs_once(guard: Guard):
    text = (ROOT / guard.file).read_text()
    assert text.count(guard.text) == 1, "name the line as it is now, and see that make mutants kills its mutant"
    assert text.replace(guard.text, guard.mutant) != text


@pytest.mark.parametrize("guard", GUARDS, ids=name_of)
def test_the_test_of_a_guard_exists(guard: Guard):
    if guard.broker:
        group, name = guard.test.removeprefix(SUITE).split("::")
        assert hasattr(getattr(BrokerConformance, group), name)
    else:
        file, name = guard.test.split("::")
        assert f"def {name}(" in (ROOT / file).read_text()


def test_no_guard_is_listed_twice():
    assert len({(guard.file, guard.text, guard.mutant) for guard in GUARDS}) == len(GUARDS)
