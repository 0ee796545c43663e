"""Rules that keep the code easy to enter: sizes, unique names, plain words, documents that name real files."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_no_file_is_over_350_lines_and_no_function_over_50(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 350
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 50, f"{node.name} has {node.end_lineno - node.lineno + 1} lines"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_class_has_over_25_methods_of_its_own(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and not PROTOCOL_PARTS.fullmatch(node.name):
            methods = [child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]
            assert len(methods) <= 25, f"{node.name} has {len(methods)} methods"


def test_no_public_class_name_is_used_twice() -> None:
    homes = defaultdict(list)
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name_of(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("path", [*SOURCES, *PACKAGE.rglob("*.lua"), *PACKAGE.rglob("*.sql"), *PAGES], ids=name_of)
def test_prose_names_who_does_what(path: Path) -> None:
    assert ROUNDABOUT.findall(path.read_text()) == []


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
