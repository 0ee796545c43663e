"""The stage that drops the files whose version the ledger knows already. Never enqueues.

It keeps the scanned files until the broker has answered, so an outage loses none of them. They are at most one step of
a scan: while a call is unanswered, nothing more is scanned. A kill -9 loses them from memory; the next scan finds them.
"""

from __future__ import annotations

from fileq.brokers.protocol import Broker
from fileq.producer.counts import ProducerCounts
from fileq.producer.finder.found_file import FoundFile
from fileq.producer.ledger_sweep import Change, without_mark

PROBE_S = 5.0  # after this time without a lookup, the broker is called anyway, to notice an outage


class LedgerLookup:
    """`is_answered`: the last call did not fail. Until then nothing more is to be scanned."""

    def __init__(self, broker: Broker, root: bytes, counts: ProducerCounts, now_s: float) -> None:
        self.is_answered = True
        self._broker = broker
        self._root = root
        self._counts = counts
        self._unanswered: list[FoundFile] = []
        self._answered_s = now_s

    def __len__(self) -> int:
        return len(self._unanswered)

    def turn(self, now_s: float, scanned: list[FoundFile]) -> list[FoundFile]:
        """The files whose version is new. Raises BrokerError; the next turn repeats the call."""
        self._unanswered += scanned
        self.is_answered = False
        new: list[FoundFile] = []
        if self._unanswered:
            new = self._look_up()
            self._answered_s = now_s
        elif now_s - self._answered_s >= PROBE_S:
            self._broker.lookup([self._root])
            self._answered_s = now_s
        self.is_answered = True
        return new

    def require_answer(self) -> None:
        """A broker call failed elsewhere: the next turn calls the broker, so that only an answer ends the outage."""
        self._answered_s = float("-inf")

    def _look_up(self) -> list[FoundFile]:
        files = self._unanswered
        entries = self._broker.lookup([file.path for file in files])
        reappeared: list[Change] = [
            (file.path, entry, without_mark(entry))
            for file, entry in zip(files, entries, strict=True)
            if entry is not None and entry.missing_since_ms
        ]
        if reappeared:
            self._broker.update_ledger(reappeared)
        self._unanswered = []
        new = [
            file for file, entry in zip(files, entries, strict=True) if entry is None or not entry.knows(file.signature)
        ]
        self._counts.found += len(files)
        self._counts.known += len(files) - len(new)
        return new
