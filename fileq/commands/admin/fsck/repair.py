"""Puts right what two looks agreed on, each by one atomic step of the broker, and keeps a list of what it did."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import EnqueueResult, Entry, Record, Suspect, UnrecordedJob
from fileq.commands.admin.fsck.balance import Measured, agreed
from fileq.commands.admin.fsck.ledger import Forsaken
from fileq.commands.admin.fsck.report import Repair
from fileq.config import Config
from fileq.core.job import State, Version, decode_or_none, encode, file_job
from fileq.core.retry import Policy
from fileq.core.text import printable
from fileq.producer.outbox import priority_chooser
from fileq.worker.reaper import reap

_AT_ONCE = 20
_TRIES = 5


class Mending:
    def __init__(self, broker: FullBroker, config: Config, here: Callable[[bytes], bytes]) -> None:
        worker = config.worker
        self._broker = broker
        self._config = config
        self._here = here
        self._policy = Policy(worker.max_retries, worker.max_recoveries, worker.backoff)
        self.repairs: list[Repair] = []

    def mend(
        self,
        silent: Sequence[Suspect],
        lost: Sequence[Record],
        strays: Sequence[UnrecordedJob],
        queue_strays: Sequence[UnrecordedJob],
        excess: int,
    ) -> None:
        """All but the counters."""
        for suspect in silent:
            self._reap(suspect)
        reinstated = self._reinstate(lost)
        self._record(strays)
        # Each job that is back in its place has made good for one; only the others are records of ours that were lost.
        ours = sorted(queue_strays, key=self._is_foreign)[: max(0, excess - reinstated)]
        self._record(ours)

    def _reap(self, suspect: Suspect) -> None:
        words = {"release": "back to its queue", "retry": "to be retried", "bury": "dead"}
        for verdict in reap(self._broker, suspect, self._policy):
            self._did("reaped", verdict.claim.id, f"its slot {suspect.slot} died; {words[verdict.verb.value]}")
        if not suspect.claims:
            self._did("forgotten", suspect.slot, "the slot died, and held nothing")

    def _reinstate(self, lost: Sequence[Record]) -> int:
        """How many of them counted for the law: a job that was running still has to be done, like all others."""
        count = 0
        for start in range(0, len(lost), _AT_ONCE):
            some = lost[start : start + _AT_ONCE]
            for record, is_back in zip(some, self._broker.restore([r.id for r in some]), strict=True):
                if is_back:
                    count += 1
                    self._did("reinstated", record.id, _place_of(record))
        return count

    def _record(self, strays: Sequence[UnrecordedJob]) -> None:
        for start in range(0, len(strays), _AT_ONCE):
            some = strays[start : start + _AT_ONCE]
            for stray, is_made in zip(some, self._broker.create_record(some), strict=True):
                if is_made:
                    self._did("recorded", stray.record.id, f"as {stray.record.state.value}, from its element")

    def enqueue(self, files: Sequence[Forsaken]) -> None:
        """A new job under the old id for each file that is still there. The counters see to the one that is gone."""
        entries = []
        for one in files:
            try:
                size = os.stat(self._here(one.path)).st_size
            except (OSError, ValueError):
                continue
            queue = priority_chooser(self._config)(one.path)
            job = file_job(one.path, size=size, priority=queue, now=datetime.now(UTC), signature=one.signature).but(
                id=one.id
            )
            entries.append(Entry(job, queue, Version(one.path, one.signature), always=True))
        if entries:
            for entry, fate in zip(entries, self._broker.enqueue(entries).results, strict=True):
                if fate is EnqueueResult.ENQUEUED:
                    self._did("enqueued", entry.job.id, f"again, for {printable(entry.job.filepath)}")

    def _is_foreign(self, stray: UnrecordedJob) -> tuple[bool, bool]:
        """The likeliest ones of ours first: those the ledger knows, then those that are spelt as we spell."""
        job = decode_or_none(stray.record.raw)
        if job is None:
            return True, True
        [entry] = self._broker.lookup([job.path]) if job.filepath else [None]
        is_known = entry is not None and any(id == job.id for _, id in entry.versions)
        return not is_known, encode(job) != stray.record.raw

    def balance(self, measure: Callable[[], Measured]) -> None:
        """The counters, last: by what is still out of balance, if it is exactly that when they are changed. Measured
        anew where something moved in between."""
        for _ in range(_TRIES):
            first = measure()
            now = measure() if first.excess else first
            excess = agreed(first, now)
            if not excess:
                return
            drift = now.census.drift
            if self._broker.balance(drift, drift - excess):
                if excess > 0:
                    self._did("counted", "deleted", f"+{excess}: taken in, and found nowhere")
                else:
                    self._did("counted", "adopted", f"+{-excess}: found, and never taken in")
                return

    def _did(self, action: str, id: str, detail: str) -> None:
        self.repairs.append(Repair(action, id, detail))


def _place_of(record: Record) -> str:
    if record.state in (State.PENDING, State.RUNNING):
        return f"to the front of {record.queue}"
    return "to the dead-letter queue" if record.state is State.DEAD else "to the scheduled ones"
