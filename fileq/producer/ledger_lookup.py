"""The stage that drops the files whose version the ledger knows already, and removes their markers. Never enqueues.

It keeps the scanned files until the broker has answered, so an outage loses none of them. They are at most one step of
a scan: while a call is unanswered, nothing more is scanned. A kill -9 loses them from memory; the next scan finds them.
"""

from __future__ import annotations

from fileq.brokers.protocol import Broker
from fileq.producer.counts import ProducerCounts
from fileq.producer.finder.found_file import FoundFile
from fileq.producer.identity import FileIdentity
from fileq.producer.ledger_sweep import Change, without_mark
from fileq.producer.markers import Markers

PROBE_S = 5.0  # after this time without a lookup, the broker is called anyway, to notice an outage


class LedgerLookup:
    """`is_answered`: the last call did not fail. Until then nothing more is to be scanned."""

    def __init__(
        self,
        broker: Broker,
        root: bytes,
        identity: FileIdentity,
        markers: Markers,
        counts: ProducerCounts,
        now_s: float,
    ) -> None:
        self.is_answered = True
        self._broker = broker
        self._root = root
        self._identity = identity
        self._markers = markers
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
        # Most files are known and unchanged. Only the entries of the others are read and decoded.
        known = self._broker.knows(self._identity.recorded(files))
        new = self._look_into([file for file, is_known in zip(files, known, strict=True) if not is_known])
        self._unanswered = []
        self._counts.found += len(files)
        self._counts.known += len(files) - len(new)
        if self._markers:  # a producer that was killed may have left them
            paths = {file.path for file in new}
            self._markers.remove(file for file in files if file.path not in paths)
        return new

    def _look_into(self, files: list[FoundFile]) -> list[FoundFile]:
        """The files whose version is new. Corrects the entries of the others."""
        if not files:
            return []
        new: list[FoundFile] = []
        changes: list[Change] = []
        for file, entry in zip(files, self._broker.lookup([file.path for file in files]), strict=True):
            if entry is None:
                new.append(file)
                continue
            known = self._identity.entry_if_known(file, entry)
            if known is None:
                new.append(file)
            after = entry if known is None else known
            if after.missing_since_ms:  # the file has come back
                after = without_mark(after)
            if after is not entry:
                changes.append((file.path, entry, after))
        if changes:
            self._broker.update_ledger(changes)
        return new
