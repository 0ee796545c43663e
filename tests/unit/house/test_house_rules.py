"""Rules that keep the code easy to enter: unique names, plain words, documents that name real files."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PACKAGE = REPOSITORY / "fileq"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
ROUNDABOUT = re.compile(r"\b(nobody|somebody|whoever|quarrel|mended)\b|\bin any case\b", re.IGNORECASE)


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def top_classes(path: Path) -> list[str]:
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]


# One test for each rule and not for each file: most of the time of a short test is pytest's own.
def test_no_public_class_name_is_used_twice() -> None:
    homes = defaultdict(list)
    for path in SOURCES:
        for name in top_classes(path):
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


PROSE = re.compile(r'"""(.*?)"""|^\s*#(.*)$', re.DOTALL | re.MULTILINE)
MODULE = re.compile(r"(?<![\w/{.*-])((?:\w+/)*\w+\.(?:py|lua))\b")
OF_OTHERS = {"csv.py", "jobs.py", "queue.py", "_text.py"}  # examples, and modules of the standard library


def test_comments_name_modules_that_exist() -> None:
    """In docstrings and comments, so that moving a module leaves no name behind that a reader would search for."""
    modules = [f"/{path.relative_to(REPOSITORY)}" for path in (*SOURCES, *PACKAGE.rglob("*.lua"))]
    lost = [
        (name_of(path), name)
        for path in SOURCES
        for parts in PROSE.findall(path.read_text())
        for name in MODULE.findall("".join(parts))
        if name not in OF_OTHERS and not any(module.endswith(f"/{name}") for module in modules)
    ]
    assert lost == []
