"""The pipeline of the producer: finder → ledger lookup → stability → content check → enqueuer.

Owns no thread and handles no signal.

One turn passes batches straight down. Files that changed while they waited to be sent go back to stability; files
without room in stability are found again by a new scan. Every step of a turn is bounded, and so is what the stages hold
between turns, independent of the size of the tree. A kill -9 loses only time: files that were not sent are found again,
and the ledger knows the versions that were.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from fileq.brokers.protocol import FullBroker
from fileq.config import Config
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.events import Emit, ignore, produced
from fileq.files.paths import advice_for, directory_problem
from fileq.files.status import ScanDirMounts
from fileq.producer.content_check import ContentCheck
from fileq.producer.deliveries import DeliveryStage
from fileq.producer.enqueuer import BeforeEnqueue, Enqueuer
from fileq.producer.finder.finder import Finder
from fileq.producer.finder.scan import ProducerCounts, ScanRules
from fileq.producer.ledger_stages import DAY_MS, FileIdentity, LedgerLookup, LedgerSweep
from fileq.producer.markers import Markers
from fileq.producer.stability import ClockGuard, Stability

IDLE_S = 1.0


def check_scan_dir(config: Config) -> None:
    """Raises ConfigError if scan_dir can't be scanned. At start that is a mistake, later it is an outage."""
    scan_dir = config.producer.scan_dir
    if problem := directory_problem(os.fsencode(scan_dir), is_listed=True):
        advice = f"{advice_for(problem)}, or choose another"
        raise ConfigError(f"producer.scan_dir is {scan_dir!r}, which {problem}; {advice}")


class Producer:
    """The producer of one scan_dir on one broker. `is_once`: one scan, no events, no repetition. `before_enqueue` may
    change or veto each job. `max_memory` is what the files of one delivery may take.

    `wake` is set when there are new events: the next turn should not wait any longer."""

    name = "producer"

    def __init__(
        self,
        config: Config,
        broker: FullBroker,
        *,
        emit: Emit = ignore,
        is_once: bool = False,
        before_enqueue: BeforeEnqueue | None = None,
        forget_after_ms: int = DAY_MS,
        max_memory: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        check_scan_dir(config)
        self.counts = ProducerCounts(emit)
        self._emit = emit
        self._monotonic = monotonic
        self._clock = ClockGuard(config.producer.settle_unclosed, wall_ns, monotonic)
        rules = ScanRules(config, self.counts)
        mounts = ScanDirMounts(rules.root)
        self.finder = Finder(config, rules, mounts, emit=emit, is_once=is_once, monotonic=monotonic)
        identity = FileIdentity(config.producer.identity, mounts, emit)
        # A stage that has nothing to do with these settings is None.
        suffix = config.producer.ready_suffix
        markers = Markers(suffix, rules, emit) if suffix else None
        self._lookup = LedgerLookup(broker, identity, rules, markers, monotonic())
        by_content = config.producer.identity == "content"
        self._content = ContentCheck(broker, identity, rules, monotonic) if by_content else None
        self.stability = Stability(config, rules, markers, mounts, self._clock)
        self._deliveries = deliveries = (
            DeliveryStage(config, broker, identity, rules, markers, emit, monotonic, wall_ns, max_memory)
            if rules.deliveries
            else None
        )
        self.enqueuer = Enqueuer(
            config, broker, identity, rules, markers, deliveries, before_enqueue, emit=emit, monotonic=monotonic
        )
        self._sweep = LedgerSweep(broker, rules, mounts, self._clock, forget_after_ms)
        self.wake = self.finder.wake

    def turn(self) -> float:
        """Does what can be done now and returns the seconds until there may be more. After a BrokerError the next turn
        continues where this one ended."""
        self.wake.clear()
        try:
            self._turn(self._monotonic())
        except BrokerError:
            self._lookup.require_answer()
            raise
        finally:
            self.counts.report()
        return self._pause_s(self._monotonic())

    def _turn(self, now_s: float) -> None:
        self._clock.check()
        found = self.finder.turn(now_s, may_scan=self._may_scan)
        if found.ended_scan is not None:
            self._sweep.plan(is_complete=found.ended_scan.is_complete)

        # The lookup may raise. Stability takes the files of events before it, because they are found only once.
        self._rescan_unless(self.stability.add(found.closed, now_s, is_closed=True))
        self._rescan_unless(self.stability.add(found.created, now_s, is_closed=False))

        new = self._lookup.turn(now_s, found.scanned)
        self._rescan_unless(self.stability.add_scanned(new, now_s))

        stable = self.stability.turn(now_s, self._room)
        if self._content is not None:
            checked = self._content.turn(stable)
            self._rescan_unless(self.stability.add(checked.changed, now_s, is_closed=False))
            stable = checked.new
        self.enqueuer.add(stable, now_s)

        now_s = self._monotonic()  # the lookup took time
        sent = self.enqueuer.turn(now_s)
        self._rescan_unless(self.stability.add(sent.changed, now_s, is_closed=False))
        self.counts.known += sent.known
        self.counts.enqueued += len(sent.enqueued)
        for entry in sent.enqueued:
            self._emit(produced(entry.job, entry.queue))
        if sent.error is not None:
            raise sent.error

        if self._deliveries is not None:
            self._deliveries.turn(now_s)
        self._sweep.turn()

    def close(self) -> None:
        self.finder.close()

    at_end = close  # for the loop that turns it

    @property
    def is_idle(self) -> bool:
        """Every file that exists was found, was stable and was enqueued."""
        is_done = self.waits_only_for_writers and not self.stability and not self._sweep.is_running
        return is_done and (self._deliveries is None or not self._deliveries.is_sealing)

    @property
    def waits_only_for_writers(self) -> bool:
        """Nothing is left to do but to wait until files are stable."""
        return self.finder.is_at_rest and not self._lookup and not self._content and not self.enqueuer

    @property
    def unsent(self) -> int:
        """Files that were found and are not enqueued yet."""
        return len(self._lookup) + len(self.stability) + len(self._content or ()) + len(self.enqueuer)

    @property
    def _may_scan(self) -> bool:
        return self._lookup.is_answered and self._room > 0 and not self.stability.is_full

    @property
    def _room(self) -> int:
        return max(0, self.enqueuer.room - len(self._content or ()))

    def _rescan_unless(self, has_room: bool) -> None:
        """A found file that could not be kept is found again by a scan of the whole scan_dir."""
        if not has_room:
            self.finder.schedule.request_whole()

    def _pause_s(self, now_s: float) -> float:
        is_scan_due = self._may_scan and not self.finder.is_at_rest
        is_reading = self._deliveries is not None and self._deliveries.is_reading
        if self._sweep.is_running or self._content or is_reading or is_scan_due:
            return 0.0
        due = [now_s + IDLE_S]
        if self._may_scan:  # otherwise a scan that is due would make every pause 0
            due.append(self.finder.next_due_s)
        if self.enqueuer:
            due.append(now_s + self.enqueuer.throttle.left_s(now_s))
        if self._room and (stable_s := self.stability.next_due_s()) is not None:
            due.append(stable_s)
        return max(0.0, min(due) - now_s)
