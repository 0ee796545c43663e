"""docs/guarantees.md lists the guards that `make mutants` breaks, and each guard is about code and a test of now."""

from functools import cache

from fileq.testing.conformance import BrokerConformance
from tests.mutants import PAGE, ROOT, with_table
from tests.support.guards import GUARDS, Guard
from tests.support.guards.guard import SUITE


def name_of(guard: Guard) -> str:
    return f"{guard.broker or 'fileq'}: {guard.guarantee}: {guard.text!r}"


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text()


def test_the_page_has_the_table_of_now():
    page = (ROOT / PAGE).read_text()
    assert page == with_table(page), "run make docs"


# One test for all guards: each alone takes less time than pytest needs for a test.
def test_a_guard_is_a_line_that_occurs_once():
    assert GUARDS
    unclear = {name_of(guard): files for guard in GUARDS if len(files := guard.files()) != 1}
    assert unclear == {}, "name the line as it is now, and see that make mutants kills its mutant"
    assert [name_of(guard) for guard in GUARDS if guard.text == guard.mutant] == []


def test_the_test_of_a_guard_exists():
    assert [name_of(guard) for guard in GUARDS if not has_test(guard)] == []


def has_test(guard: Guard) -> bool:
    if guard.broker:
        group, name = guard.test.removeprefix(SUITE).split("::")
        return hasattr(getattr(BrokerConformance, group), name)
    file, name = guard.test.split("::")
    return f"def {name.partition('[')[0]}(" in text_of(file)


def test_no_guard_is_listed_twice():
    assert len({(guard.broker, guard.text, guard.mutant) for guard in GUARDS}) == len(GUARDS)
