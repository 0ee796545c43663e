"""No regular expression of fileq takes steps that grow faster than the text: texts come from outside."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fileq
from fileq.core import delivery, fingerprint
from fileq.core.delivery import without_files
from tests.support.regex_steps import Steps, attacks, worst_attack

PACKAGE = Path(fileq.__file__).parent
MADE = ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
# Expressions that are made of values: the module, and some of what they become. Each has its use.
MADE_OF_VALUES: dict[str, list[tuple[str, str]]] = {
    "fileq/config/value_types.py: re.fullmatch(self.pattern, text)": [],  # of the operator's configuration
    "fileq/files/globs.py: re.compile(found, re.DOTALL)": [],  # test_globs.py counts their steps
    "fileq/handlers/job_file.py: re.search(": [(r"/(proc/(self|thread-self|\d+)|dev)/fd/12(?!\d)", "search")],
    "fileq/server/console/view.py": [(r"/dashboard/jobs/(?P<id>.+)", "fullmatch")],
    "fileq/server/hidden_paths.py: re.compile(f'[{firsts}]')": [],  # one character
    "fileq/server/route.py": [(r"/files/content/(?P<path>.+)", "fullmatch"), (r"/jobs/(?P<id>[^/]+)/log", "fullmatch")],
    "fileq/server/web_app.py: re.compile(pattern)": [],  # those of view.py
}
# Texts of the operator's own configuration and environment: not from outside, and short.
OF_THE_OPERATOR = ("fileq/config/value_types.py", "fileq/config/sources.py")
# Rules for lines that are cut before: the growth may be quadratic, and the most steps for the longest line are bounded.
CUT_BEFORE = {"fileq/core/fingerprint.py": fingerprint._LONGEST_LINE}


class Found(NamedTuple):
    place: str  # file and line
    pattern: str | bytes
    flags: int
    uses: tuple[str, ...]  # names of methods; search is the worst
    is_in_a_table: bool  # one of several that a loop applies, as `pattern`


def found_in(path: Path) -> Iterator[Found | str]:
    """The expressions of a module, and the places of those that are made of values."""
    relative = path.relative_to(PACKAGE.parent)
    tree = ast.parse(path.read_text())
    module = importlib.import_module(".".join(relative.with_suffix("").parts).removesuffix(".__init__"))
    names = {**vars(module), "re": re}
    uses: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            uses.setdefault(node.value.id, set()).add(node.attr)
    assigned = {
        node.value: node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MADE):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
            continue
        place = f"{relative}:{node.lineno}"
        try:
            pattern = value_of(node.args[0], names)
            flags = flags_of(node, names)
        except NameError:
            yield f"{relative}: {ast.unparse(node)}"
            continue
        used = {node.func.attr}
        if node.func.attr == "compile":
            used = uses.get(assigned.get(node, "pattern"), set()) & set(MADE) or {"search"}
        yield Found(place, pattern, flags, tuple(sorted(used)), node not in assigned)


def value_of(node: ast.expr, names: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "", "eval"), names)


def flags_of(node: ast.Call, names: dict[str, Any]) -> int:
    given = [word.value for word in node.keywords if word.arg == "flags"]
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("compile", "match", "fullmatch", "search"):
        given += node.args[1:2] if node.func.attr == "compile" else node.args[2:3]
    return int(value_of(given[0], names)) if given else 0


ALL = [one for path in sorted(PACKAGE.rglob("*.py")) if "import re\n" in path.read_text() for one in found_in(path)]
EXPRESSIONS = [one for one in ALL if isinstance(one, Found)]


@pytest.mark.parametrize("found", EXPRESSIONS, ids=lambda found: found.place)
def test_the_steps_of_an_expression_grow_like_the_text(found: Found) -> None:
    """medium: 20,000 times `missing: ` in a payload took 19 s."""
    steps = Steps(found.pattern, found.flags)
    module = found.place.partition(":")[0]
    if module in OF_THE_OPERATOR:
        return
    for use in found.uses:
        worst = worst_attack(steps, use)
        if worst is not None and found.is_in_a_table and module in CUT_BEFORE:
            longest = CUT_BEFORE[module] // 2  # quadratic growth holds for twice as much
            steps.most = 5 * longest**2  # beyond it, run() raises
            for attack in attacks(steps):
                steps.run(attack.text(longest)[:longest], use)
        else:
            assert worst is None, (found.pattern, use, worst)


@pytest.mark.parametrize("place", [one for one in ALL if isinstance(one, str)])
def test_an_expression_that_is_made_of_values_is_known(place: str) -> None:
    [known] = [name for name in MADE_OF_VALUES if place.startswith(name)]
    for pattern, use in MADE_OF_VALUES[known]:
        assert worst_attack(Steps(pattern, re.DOTALL), use) is None


OLD_NAMING = r"((?:missing|wrong size): ).*?( is in the manifest and| has \d+ bytes, the manifest| has sha256 )"


@pytest.mark.parametrize(
    ("pattern", "use"),
    [
        (OLD_NAMING, "sub"),
        (r"(a+)+b", "match"),
        (r"(a|aa)*$", "match"),
        (r"a*a*b", "fullmatch"),
        (r"\s+$", "search"),
        (r"[a-z]+=", "search"),
        (r"<([^<>]*:\d+ in [^<>]*)>", "search"),
        (rb"(?:\w+\s?)*\.", "match"),
    ],
)
def test_an_expression_that_backtracks_is_found(pattern: str | bytes, use: str) -> None:
    assert worst_attack(Steps(pattern, re.DOTALL), use) is not None


@pytest.mark.parametrize(
    ("pattern", "use"), [(r"[a-z]+=", "fullmatch"), (r"(?<![a-z])[a-z]+=", "search"), (r"(?>a*)b|c++d", "match")]
)
def test_an_expression_that_does_not_is_not(pattern: str, use: str) -> None:
    assert worst_attack(Steps(pattern, re.DOTALL), use) is None


def test_the_files_in_an_error_are_hidden_in_steps_that_grow_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """medium: with `files: none` a payload of 20,000 times `missing: ` took 19 s."""
    starts: list[int] = []

    class Counted:
        def __init__(self, pattern: re.Pattern[str]) -> None:
            self.pattern = pattern

        def search(self, text: str, start: int) -> re.Match[str] | None:
            found = self.pattern.search(text, start)
            starts.append((found.end() if found else len(text)) - start)
            return found

    for name in ("_KIND", "_AFTER_FILE"):
        monkeypatch.setattr(delivery, name, Counted(getattr(delivery, name)))
    named = "wrong size: /in/a has 5 bytes, the manifest says 6; "
    for text in ("missing: " * 20_000, named * 1_000, "missing: has sha256 " * 1_000, "missing: " * 9 + named * 9):
        starts.clear()
        shown = without_files(text)
        assert "/in/a" not in shown
        assert sum(starts) <= 2 * len(text)


@given(
    st.sampled_from([r"(a|b)*?c", r"a{2,3}b*", r"(?>a*)b", r"(?<=a)b+", r"\ba|c$", r"a*+.", r"(?!ab)[ab]+|^c"]),
    st.text("abc\n", max_size=8),
)
def test_the_counted_matcher_finds_what_python_finds(pattern: str, text: str) -> None:
    assert Steps(pattern).run(text, "search") == [one.span() for one in [re.search(pattern, text)] if one]
    found = re.fullmatch(pattern, text)
    assert Steps(pattern).run(text, "fullmatch") == ([found.span()] if found else [])
