"""docs/guarantees.md lists the guards that `make mutants` breaks."""

from pathlib import Path

from tests.mutants import PAGE, ROOT, with_table
from tests.support.guards import GUARDS


def test_the_page_has_the_table_of_now():
    page = (ROOT / PAGE).read_text()
    assert page == with_table(page), "run make docs"


def test_every_guard_names_files_that_exist():
    for guard in GUARDS:
        tests = [word for word in guard.tests.split() if word.endswith(".py")]
        assert tests, guard
        for name in (guard.file, *tests):
            assert Path(ROOT, name).is_file(), guard


def test_no_guard_is_listed_twice():
    assert len({(guard.file, guard.text, guard.mutant) for guard in GUARDS}) == len(GUARDS)
