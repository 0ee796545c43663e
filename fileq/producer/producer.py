"""Finds files, waits until they stand still, and enqueues each version once. Owns no thread and no signal.

One turn: take what was heard, walk on in the scan that is under way, take what has settled, enqueue. Each part of a
turn is bounded, and so is what is held between turns, however large the tree is. A crash anywhere loses nothing but
time: whatever was not enqueued is found again, whatever was is known to the ledger.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

from fileq.brokers.protocol import Broker, Inspector
from fileq.config import Config
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.events import Emit, SkipReason, ignore
from fileq.producer.counts import ProducerCounts
from fileq.producer.forget import DAY_MS, Change, pardon, seen, sweep
from fileq.producer.outbox import BATCH, Outbox
from fileq.producer.patrol import Patrol, Scan
from fileq.producer.scan import Found, Scanner
from fileq.producer.settle import Settling
from fileq.producer.wall import Wall

IDLE_S = 1.0
PROBE_S = 5.0  # a broker that nothing was asked of for so long is asked whether it is there
SWEEP_INTERVAL_S = 3600.0


def check_scan_dir(config: Config) -> None:
    """Raises ConfigError where there is nothing to scan; at start that is a mistake, later it is an outage."""
    scan_dir = config.producer.scan_dir
    if not os.path.isdir(scan_dir):
        what = "is not a directory" if os.path.lexists(scan_dir) else "does not exist"
        raise ConfigError(f"producer.scan_dir is {scan_dir!r}, which {what}; create it or name another")


class Producer:
    """The producer of one scan_dir on one broker. `is_once`: one scan, no events, no repetition."""

    def __init__(
        self,
        config: Config,
        broker: Broker,
        inspector: Inspector,
        *,
        emit: Emit = ignore,
        is_once: bool = False,
        forget_after_ms: int = DAY_MS,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        check_scan_dir(config)
        self.counts = ProducerCounts(emit)
        self.wake = threading.Event()
        self._broker = broker
        self._emit = emit
        self._forget_after_ms = forget_after_ms
        self._monotonic = monotonic
        self._wall = Wall(config.producer.settle_unclosed, wall_ns, monotonic)
        self._scanner = Scanner(config, self.counts.skip)
        self._patrol = Patrol(config, self._scanner, emit=emit, wake=self.wake, is_once=is_once, monotonic=monotonic)
        self._settling = Settling(config.producer.settle, config.producer.settle_unclosed)
        self._outbox = Outbox(
            config,
            broker,
            inspector,
            look=self._scanner.look,
            changed=self._changed,
            counts=self.counts,
            emit=emit,
            monotonic=monotonic,
        )
        self._held_back: list[Found] = []  # seen, and the broker not asked about them yet
        self._answered_s = monotonic()
        self._sweep: Iterator[int] | None = None
        self._next_sweep_s = float("-inf")
        self._may_have_marks = self._leaves_marks = True

    # one turn

    def turn(self) -> float:
        """Do what can be done now; the seconds after which there may be more. Raises BrokerError, and nothing is
        lost by it."""
        now_s = self._monotonic()
        self.wake.clear()
        try:
            self._wall.look()
            self._patrol.check_ground()
            self._hear(now_s)
            self._probe(now_s)
            self._walk_on(now_s)
            self._take_settled(now_s)
            self._outbox.send()
            self._plan_sweep(now_s, self._patrol.take_ended())
            self._forget()
        except BrokerError:
            self._answered_s = float("-inf")
            raise
        finally:
            self.counts.report()
        return self._pause_s(self._monotonic())

    @property
    def problem(self) -> str:
        """Why there is nothing to do its work on; "" when there is."""
        return self._patrol.problem

    @property
    def is_idle(self) -> bool:
        """Everything there is was seen, settled and enqueued."""
        return self.waits_only_for_writers and not self._settling and self._sweep is None

    @property
    def waits_only_for_writers(self) -> bool:
        return self._patrol.is_at_rest and not self._held_back and not self._outbox

    @property
    def unsettled(self) -> int:
        return len(self._settling)

    @property
    def ahead(self) -> int:
        """Files seen and not enqueued yet."""
        return len(self._settling) + len(self._held_back) + len(self._outbox)

    @property
    def held_by(self) -> str:
        """The setting that holds enqueueing back at the moment; "" when none does."""
        return self._outbox.throttle.reason

    def close(self) -> None:
        self._patrol.close()

    def _pause_s(self, now_s: float) -> float:
        if self._sweep is not None or (self._can_walk() and not self._patrol.is_at_rest):
            return 0.0
        due = [self._patrol.next_due_s, now_s + IDLE_S]
        if self._outbox:
            due.append(now_s + self._outbox.left_s(now_s))
        if not self._outbox.is_full and (settles_s := self._settling.next_due_s()) is not None:
            due.append(settles_s)
        return max(0.0, min(due) - now_s)

    def _probe(self, now_s: float) -> None:
        """An outage is noticed while there is nothing to do, and its end is proved by an answer."""
        if now_s - self._answered_s >= PROBE_S:
            self._broker.lookup([self._scanner.root])
            self._answered_s = now_s

    # finding

    def _hear(self, now_s: float) -> None:
        heard = self._patrol.hear(now_s)
        for path in heard.closed | heard.created:
            if self._scanner.is_linked_directory(path):
                self._patrol.want(path)
                continue
            marked = self._scanner.marked_by(path)
            found = self._scanner.look(marked if marked is not None else path)
            if found is not None:
                self._settle(found, now_s, is_closed=path in heard.closed)

    def _can_walk(self) -> bool:
        return not self._outbox.is_full and not self._settling.is_full

    def _walk_on(self, now_s: float) -> None:
        """One step further. What was seen is kept until the broker has answered for it."""
        if self._held_back:
            self._sift(now_s)
        if self._can_walk():
            self._held_back = self._patrol.walk_on(now_s)
            self._sift(now_s)

    def _sift(self, now_s: float) -> None:
        """Known versions are done with; new ones wait until they stand still, unless they evidently have."""
        found = self._held_back
        if not found:
            return
        entries = self._broker.lookup([file.path for file in found])
        back: list[Change] = [
            (file.path, entry, seen(entry))
            for file, entry in zip(found, entries, strict=True)
            if entry is not None and entry.missing_since_ms
        ]
        if back:
            self._broker.update_ledger(back)
        self._answered_s = now_s
        self._held_back = []
        self.counts.found += len(found)
        for file, entry in zip(found, entries, strict=True):
            if entry is not None and entry.knows(file.signature):
                self.counts.known += 1
            elif not self._scanner.is_ready(file.path):
                self.counts.skip(SkipReason.UNMARKED, file.path)
            elif self._has_aged(file):
                self._make_ready(file)
            else:
                self._settle(file, now_s, is_closed=False)

    def _has_aged(self, found: Found) -> bool:
        """Untouched for its settle time already, by a clock that is ours: other machines' clocks prove nothing."""
        if found.path in self._settling or self._patrol.places.is_remote(os.path.dirname(found.path)):
            return False
        return self._wall.has_rested(max(found.ctime_ns, found.mtime_ns))

    # settling

    def _settle(self, found: Found, now_s: float, *, is_closed: bool) -> None:
        if not self._settling.offer(found, now_s, is_closed=is_closed):
            self._patrol.rescan()

    def _changed(self, found: Found) -> None:
        self._settle(found, self._monotonic(), is_closed=False)

    def _take_settled(self, now_s: float) -> None:
        if self._outbox.is_full:
            return
        settled, restless = self._settling.take_settled(now_s, BATCH, self._scanner.look)
        for found in restless:
            self.counts.skip(SkipReason.CHANGING, found.path)
        for found in settled:
            # Without its marker it is nothing to wait for: the marker's own event, or a scan, brings it back.
            if self._scanner.is_ready(found.path):
                self._make_ready(found)
            else:
                self.counts.skip(SkipReason.UNMARKED, found.path)

    def _make_ready(self, found: Found) -> None:
        self._outbox.put(found, self._patrol.places.device(os.path.dirname(found.path)))

    # forgetting

    def _plan_sweep(self, now_s: float, scan: Scan | None) -> None:
        """After a scan without errors the missing may be marked and, after a day of such scans, forgotten; any
        error begins the day anew."""
        if scan is None:
            return
        if not scan.is_complete:
            if self._may_have_marks:
                self._leaves_marks = False
                self._sweep = pardon(self._broker, self._scanner.root)
        elif now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + SWEEP_INTERVAL_S
            self._may_have_marks = self._leaves_marks = True
            self._sweep = sweep(
                self._broker,
                self._scanner.root,
                self._patrol.places,
                self._scanner.counts,
                self._wall.steady_ms(),
                self._forget_after_ms,
            )

    def _forget(self) -> None:
        """One page a turn; a broken call ends this sweep, and the next one begins anew."""
        if self._sweep is None:
            return
        going, self._sweep = self._sweep, None
        forgotten = next(going, None)
        if forgotten is None:
            self._may_have_marks = self._leaves_marks
        else:
            self.counts.forgotten += forgotten
            self._sweep = going
