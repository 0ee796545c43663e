"""Rules that keep the code easy to enter: sizes, unique names, plain words, documents that name real files."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.statements import statements_of

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "fileq"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PYTHON = sorted(
    path for top in ("fileq", "tests", "benchmarks", "examples") for path in (REPOSITORY / top).rglob("*.py")
)
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
# The parts of a broker implement a protocol, whose size is the contract's.
PROTOCOL_PARTS = re.compile(r"(Memory|Sqlite|Redis)(Broker|Queues|Inspector|Repairer)|Broker|Inspector|FullBroker")
ROUNDABOUT = re.compile(r"\b(nobody|somebody|whoever|quarrel|mended)\b|\bin any case\b", re.IGNORECASE)


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


class Measured(NamedTuple):
    """What the rules ask of one Python file; it is parsed once."""

    lines: int
    functions: list[tuple[str, int]]  # (name, lines)
    classes: list[tuple[str, int]]  # (name, methods)
    top_classes: list[str]


@cache
def measured(path: Path) -> Measured:
    text = path.read_text()
    tree = ast.parse(text)
    functions, classes = [], []
    for node in statements_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            functions.append((node.name, node.end_lineno - node.lineno + 1))
        elif isinstance(node, ast.ClassDef):
            methods = [child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]
            classes.append((node.name, len(methods)))
    top_classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return Measured(text.count("\n"), functions, classes, top_classes)


# One test for each rule and not for each file: most of the time of a short test is pytest's own.
def test_no_file_is_over_350_lines_and_no_function_over_50() -> None:
    assert PYTHON
    assert {name_of(path): measured(path).lines for path in PYTHON if measured(path).lines > 350} == {}
    long = {(name_of(path), name): lines for path in PYTHON for name, lines in measured(path).functions if lines > 50}
    assert long == {}


def test_no_class_has_over_25_methods_of_its_own() -> None:
    large = {
        (name_of(path), name): methods
        for path in SOURCES
        for name, methods in measured(path).classes
        if methods > 25 and not PROTOCOL_PARTS.fullmatch(name)
    }
    assert large == {}


def test_no_public_class_name_is_used_twice() -> None:
    homes = defaultdict(list)
    for path in SOURCES:
        for name in measured(path).top_classes:
            if not name.startswith("_"):
                homes[name].append(name_of(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_prose_names_who_does_what() -> None:
    paths = [*SOURCES, *PACKAGE.rglob("*.lua"), *PACKAGE.rglob("*.sql"), *PAGES]
    found = {name_of(path): ROUNDABOUT.findall(path.read_text()) for path in paths}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_name_files_that_exist(page: Path) -> None:
    """Paths in backticks: from the top of the repository, or inside the package."""
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", page.read_text())
    known = {name.split("/")[0] for name in map(str, (p.relative_to(PACKAGE) for p in PACKAGE.iterdir()))}
    for name in named:
        top = name.split("/")[0]
        if top in ("fileq", "tests", "docs", "benchmarks", "examples", "deploy"):
            assert (REPOSITORY / name).exists(), name
        elif top in known:
            assert (PACKAGE / name).exists(), name
