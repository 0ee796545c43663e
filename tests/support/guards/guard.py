"""What one guard is."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".py", ".lua", ".sql", ".html", ".js")  # of the files in which a guard may be
SUITE = "tests/conformance/test_brokers.py::TestBrokers::"


ROOT = Path(__file__).resolve().parents[3]


@cache
def sources() -> dict[str, str]:
    """The text of each file of the program, by its path."""
    paths = (path for path in (ROOT / "fileq").rglob("*.*") if path.suffix in SUFFIXES)
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths if "testing" not in path.parts}


class Guard(NamedTuple):
    """A guarantee, what breaks `without` it, and the line that holds it.

    `text` occurs once in the package of `broker`, or else once in the program: code may move without a change here.
    The mutant replaces that text, and then `test` must fail: a test of pytest, for the conformance suite on one
    broker. That of the rulebook (`rules`) is the memory broker, which is nothing but the rules."""

    guarantee: str
    without: str
    text: str
    mutant: str
    test: str
    broker: str = ""

    def files(self) -> list[str]:
        """Where the text is, once for each time. A guard that is as it should be has one."""
        found = [path for path, source in sources().items() for _ in range(source.count(self.text))]
        own = [path for path in found if path.startswith(f"fileq/brokers/{self.broker}/")] if self.broker else []
        return own or found

    @property
    def kind(self) -> str:
        """The broker of the tests; empty for a test of something else."""
        return "memory" if self.broker == "rules" else self.broker

    @property
    def file(self) -> str:
        return self.files()[0]


class Promise(NamedTuple):
    """A guarantee that brokers share, and the conformance test that holds each broker to it, as `TestClaim::test_…`."""

    guarantee: str
    without: str
    test: str

    def on(self, broker: str, text: str, mutant: str) -> Guard:
        return Guard(self.guarantee, self.without, text, mutant, SUITE + self.test, broker)
