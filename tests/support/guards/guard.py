"""What one guard is."""

from __future__ import annotations

from typing import NamedTuple

SUITE = "tests/conformance/test_brokers.py::TestBrokers::"


class Guard(NamedTuple):
    """A guarantee, what breaks `without` it, and the line that holds it: `text` occurs once in `file`.

    The mutant replaces that text, and then `test` must fail: a test of pytest, for the conformance suite on one
    broker."""

    guarantee: str
    without: str
    file: str
    text: str
    mutant: str
    test: str
    broker: str = ""


class Promise(NamedTuple):
    """A guarantee that brokers share, and the conformance test that holds each broker to it, as `TestClaim::test_…`."""

    guarantee: str
    without: str
    test: str

    def on(self, broker: str, file: str, text: str, mutant: str) -> Guard:
        return Guard(self.guarantee, self.without, file, text, mutant, SUITE + self.test, broker)
