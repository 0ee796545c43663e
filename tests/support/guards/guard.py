"""What one guard is."""

from __future__ import annotations

from typing import NamedTuple


class Guard(NamedTuple):
    """A guarantee, the line that holds it (`text` occurs once in `file`), and what the mutant puts in its place.

    `tests` are arguments of pytest; at least one of these tests must fail with the mutant."""

    guarantee: str
    file: str
    text: str
    mutant: str
    tests: str


def conformance(broker: str, *classes: str) -> str:
    """The classes of the conformance suite, or words of their tests' names, on this broker."""
    return f"tests/conformance/test_brokers.py -k '{broker} and ({' or '.join(classes)})'"
