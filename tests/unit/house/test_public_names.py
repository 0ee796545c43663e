"""What the documents call fileq.NAME can be imported under that name, and prints under it."""

from __future__ import annotations

import importlib.util
import inspect
import pickle
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fileq
from fileq.core import errors

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
# These show how fileq is built, and how a broker imports its errors.
INTERNAL = {"architecture.md", "brokers.md", "server.md", "writing-a-broker.md"}
# Status is another name of JobDocument.
CLASSES = sorted(
    name
    for name in fileq._HOMES  # type: ignore[attr-defined]
    if name[0].isupper() and name != "Status"
)


def names_in(text: str) -> Iterator[str]:
    """fileq.Name anywhere, fileq.name in Python code; not files and types of jobs such as fileq.db and fileq.scan."""
    yield from re.findall(r"(?<![\w./-])fileq\.([A-Z]\w*)", text)
    yield from re.findall(r"@fileq\.(\w+)", text)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        yield from re.findall(r"(?<![\w./\"'-])fileq\.([a-z]\w*)", block)
        for line in re.findall(r"from fileq import (.+)", block):
            yield from re.findall(r"\w+", line)


def is_there(name: str) -> bool:
    return hasattr(fileq, name) or importlib.util.find_spec(f"fileq.{name}") is not None


def test_each_name_of_the_documents_is_in_the_package() -> None:
    found = {page.name: set(names_in(page.read_text())) for page in PAGES}
    assert {"Client", "task", "JobView", "testing"} <= set().union(*found.values())
    missing = {page: absent for page, names in found.items() if (absent := {n for n in names if not is_there(n)})}
    assert missing == {}


def test_each_error_that_the_documents_name_is_in_the_package() -> None:
    known = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    for page in PAGES:
        named = set(re.findall(r"`(?:fileq\.)?(\w+)`", page.read_text())) & known
        if page.name not in INTERNAL:
            assert {name for name in named if not hasattr(fileq, name)} == set(), page


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_has_its_public_name(name: str) -> None:
    cls = getattr(fileq, name)
    assert repr(cls) == f"<class 'fileq.{name}'>"
    assert cls.__name__ == name
    assert pickle.loads(pickle.dumps(cls)) is cls


@pytest.mark.parametrize(
    "error", [fileq.JobFailed("no", 3), fileq.Retry("later", after=5), fileq.ConfigError(["a", "b"])]
)
def test_a_public_error_prints_its_public_name_and_can_be_pickled(error: Exception) -> None:
    [line] = traceback.format_exception_only(error)[:1]
    assert line.startswith(f"fileq.{type(error).__name__}: ")
    copy: Any = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_msgspec_still_reads_the_public_structs() -> None:
    for name in CLASSES:
        cls = getattr(fileq, name)
        if issubclass(cls, msgspec.Struct):
            assert msgspec.inspect.type_info(cls)
