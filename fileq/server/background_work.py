"""What a server does beside answering requests: operations, samples of the counts, removal of abandoned uploads."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Census
from fileq.commands.action_log import IDS_MAX, ActionLog
from fileq.commands.bulk_actions import (
    COMPLETED,
    FAILED,
    GONE_ELSEWHERE,
    RUNNING,
    BulkActions,
    Operation,
    OperationStore,
    StoredOperation,
    changed_ids,
)
from fileq.config import Config
from fileq.core.errors import BrokerError, BrokerUnavailable, Conflict, FileqError
from fileq.core.events import Emit, OperationEnded, OperationStarted, UploadsRemoved
from fileq.core.job import stamp
from fileq.files.uploads import remove_abandoned
from fileq.queries.dead_jobs import GONE


class BackgroundWork:
    """One for a server. A read-only server works on no operation: it changes nothing."""

    def __init__(self, config: Config, broker: FullBroker, *, emit: Emit, now_ms: Callable[[], int]) -> None:
        self._is_read_only = config.server.read_only
        self.actions = BulkActions(broker, config, now_ms)
        self.operations = OperationStore(broker, now_ms)
        self.action_log = ActionLog(broker, now_ms)
        self.runner = OperationRunner(self.operations, self.actions, emit, self.action_log)
        self.samples = LiveSamples(broker)
        self._sweep = UploadSweep(config.server.upload_dir, emit)

    def start(self) -> None:
        self.samples.start()
        if not self._is_read_only:
            self.runner.start()
            self._sweep.start()

    def stop(self, timeout_s: float) -> None:
        self.samples.stop()
        self._sweep.stop()
        self.runner.stop(timeout_s)


EVERY_S = 5.0
KEPT = 720  # an hour
_RATES = ("produced", "completed", "failed", "dead")


class LiveSample(Struct, frozen=True):
    """The counts at one moment, and the rates since the sample before. `failed` counts attempts."""

    at: str
    waiting: int
    scheduled: int
    running: int
    dead: int
    produced_per_second: float
    completed_per_second: float
    failed_per_second: float
    dead_per_second: float


class LiveSamples:
    """The counts of the last hour, which the server takes from the broker every few seconds. Kept in memory only.

    What a kill -9 leaves: nothing. A server that has just started has few samples.

    Takes samples in a thread of its own. take() and read() may be called by any thread."""

    def __init__(self, broker: FullBroker) -> None:
        self._broker = broker
        self._taken: deque[Census] = deque(maxlen=KEPT)
        self._taken_s = float("-inf")
        self._lock = threading.Lock()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()

    def take(self) -> None:
        """A sample now."""
        census = self._broker.census()
        with self._lock:
            if not self._taken or census.now_ms > self._taken[-1].now_ms:
                self._taken.append(census)
            self._taken_s = time.monotonic()

    @property
    def is_recent(self) -> bool:
        """Whether the broker has answered a moment ago."""
        return time.monotonic() - self._taken_s < 2 * EVERY_S

    def read(self) -> list[LiveSample]:
        """The samples, oldest first. A clock that stepped back, or counters that began anew, leave a gap of zeros."""
        with self._lock:
            taken = list(self._taken)
        return [_sample(before, now) for before, now in zip([taken[0], *taken], taken, strict=False)] if taken else []

    def waiting_change(self, samples: int) -> dict[str, float]:
        """How many more jobs wait in each queue than so many samples ago, per minute; below 0 if fewer wait. Empty
        without two samples. Counters of what comes in and goes out are of all queues together."""
        with self._lock:
            taken = list(self._taken)[-samples - 1 :]
        minutes = (taken[-1].now_ms - taken[0].now_ms) / 60_000 if taken else 0.0
        if minutes <= 0:
            return {}
        first, last = taken[0].pending, taken[-1].pending
        return {name: (count - first.get(name, 0)) / minutes for name, count in last.items()}

    def _run(self) -> None:
        while True:
            with suppress(BrokerError):  # the samples have a gap; requests report the outage
                self.take()
            if self._is_stopping.wait(EVERY_S):
                return


def per_second(samples: Sequence[LiveSample], name: str) -> float:
    """The mean of the rate of these samples."""
    values = [getattr(sample, f"{name}_per_second") for sample in samples]
    return round(sum(values) / len(values), 3) if values else 0.0


def _sample(before: Census, now: Census) -> LiveSample:
    seconds = (now.now_ms - before.now_ms) / 1000

    def rate(name: str) -> float:
        count = now.counters.get(name, 0) - before.counters.get(name, 0)
        return round(count / seconds, 3) if seconds > 0 and count > 0 else 0.0

    return LiveSample(
        stamp(now.now_ms) or "",
        sum(now.pending.values()),
        now.scheduled,
        now.running,
        now.dead,
        *(rate(name) for name in _RATES),
    )


TAKEOVER_S = 5.0
LOOK_S = 1.0  # between two looks for an operation without an owner
OUTAGE_S = 1.0


class OperationRunner:
    """Works on operations in a thread of the server, one at a time. Any server of a broker may work on any of them.

    A server takes an operation that has no owner, or whose document has not changed for TAKEOVER_S by this server's own
    clock: its owner writes the document before every batch. Two servers never work on one for longer than a batch, and
    even then the broker changes each job once. At a stop the operation is given back, so that another server goes on at
    once.

    start() and stop() it. wake() when an operation was created here."""

    def __init__(self, store: OperationStore, actions: BulkActions, emit: Emit, log: ActionLog) -> None:
        self._store = store
        self._actions = actions
        self._emit = emit
        self._log = log
        self._name = secrets.token_hex(6)
        self._seen: dict[str, tuple[int, float]] = {}  # id → revision, since when it has been this one
        self._looked_at = -1  # the revision of all operations when there was nothing left to do
        self._wake = threading.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operations", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self, timeout_s: float) -> None:
        self._is_stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                stored = self._next()
                if stored is not None:
                    self._work(stored)
                    continue
            except (BrokerUnavailable, Conflict):
                pass  # the broker is away, or another server was faster
            except FileqError:
                self._is_stopping.wait(OUTAGE_S)
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def _next(self) -> StoredOperation | None:
        """Takes the oldest operation that needs an owner; None if there is none."""
        revision = self._store.revision()
        if revision == self._looked_at:
            return None
        opened = [stored for stored in self._store.all() if not stored.operation.is_ended]
        if not opened:
            self._looked_at, self._seen = revision, {}
            return None
        now_s = time.monotonic()
        self._seen = {
            stored.operation.id: seen
            if (seen := self._seen.get(stored.operation.id)) is not None and seen[0] == stored.revision
            else (stored.revision, now_s)
            for stored in opened
        }
        for stored in reversed(opened):
            operation = stored.operation
            is_silent = now_s - self._seen[operation.id][1] > TAKEOVER_S
            if not operation.owner or is_silent:
                return self._take(stored)
        return None

    def _take(self, stored: StoredOperation) -> StoredOperation:
        """Counts what the former owner changed in its last batch and did not write down."""
        before = stored.operation
        done = self._actions.changed(before.action, before.underway, before.cutoff_ms) if before.underway else 0
        is_resumed = before.state == RUNNING
        taken = replace(
            before,
            owner=self._name,
            state=RUNNING,
            done=before.done + done,
            underway=(),
            takeovers=before.takeovers + is_resumed,
        )
        saved = self._store.save(taken, stored.revision)
        self._emit(OperationStarted(taken.id, taken.action.value, taken.matched, taken.done, is_resumed))
        return saved

    def _work(self, stored: StoredOperation) -> None:
        work = _OwnedOperation(self._store, self._actions, stored, self._is_stopping, self._log)
        while True:
            try:
                ended = work.run()
                break
            except BrokerUnavailable:
                if self._is_stopping.wait(OUTAGE_S):
                    return  # another server takes it over
            except Conflict:
                raise
            except Exception as error:
                ended = work.end(FAILED, str(error) if isinstance(error, FileqError) else repr(error))
                break
        if ended is not None:
            self._emit(
                OperationEnded(ended.id, ended.action.value, ended.state, ended.done, ended.refused, ended.error)
            )
            work.log_end(ended)


class _OwnedOperation:
    """An operation that this server owns. Raises Conflict when it does not any more."""

    def __init__(
        self,
        store: OperationStore,
        actions: BulkActions,
        stored: StoredOperation,
        is_stopping: threading.Event,
        log: ActionLog,
    ) -> None:
        self._store = store
        self._actions = actions
        self._stored = stored
        self._is_stopping = is_stopping
        self._action_log = log
        self._changed: list[str] | None = None  # the ids of the first jobs that were changed; None before they are read

    def run(self) -> Operation | None:
        """Passes over the jobs until a pass changes none. None if the server stops before; a repeat goes on."""
        self._count_underway()
        while True:
            changed, refused = 0, 0
            now = self._stored.operation
            for batch in self._actions.batches(now.action, now.wanted, now.cutoff_ms):
                if self._is_stopping.is_set():
                    self._save(owner="")
                    return None
                ids = tuple(job.id for job in batch)
                if (ended := self._save(underway=ids, refused=refused)) is not None:
                    return ended
                reasons = self._actions.apply(now.action, batch)
                done = reasons.count("")
                changed += done
                refused += sum(reason not in ("", GONE, GONE_ELSEWHERE) for reason in reasons)
                self._note(done=self._stored.operation.done + done, underway=())
                self._log_changed(changed_ids(batch, reasons))
            if not changed:
                return self.end(COMPLETED, refused=refused)

    def end(self, state: str, error: str = "", refused: int | None = None) -> Operation:
        now = self._stored.operation
        is_known = refused if refused is not None else now.refused
        ended = self._save(state=state, error=error[:500], refused=is_known, ended_ms=self._store.now_ms(), underway=())
        return ended or self._stored.operation

    def _log_changed(self, ids: list[str]) -> None:
        """For the page that shows what became of them: the first jobs are enough."""
        if len(known := self._logged()) < IDS_MAX:
            known += ids
            self._log(self._stored.operation, is_running=True)

    def log_end(self, ended: Operation) -> None:
        self._log(ended, is_running=False)

    def _logged(self) -> list[str]:
        if self._changed is None:
            self._changed = []
            with suppress(BrokerError):
                ids = (one.ids for one in self._action_log.all() if one.id == self._stored.operation.id)
                self._changed = list(next(ids, ()))  # of a former owner
        return self._changed

    def _log(self, now: Operation, *, is_running: bool) -> None:
        self._action_log.add(
            now.action,
            now.created_by,
            self._logged(),
            count=now.done,
            refused=now.refused,
            conditions=now.conditions,
            id=now.id,
            at_ms=now.created_ms,
            is_running=is_running,
        )

    def _count_underway(self) -> None:
        """After an outage: the reply about the last batch was lost."""
        now = self._stored.operation
        if now.underway:
            done = self._actions.changed(now.action, now.underway, now.cutoff_ms)
            self._note(done=now.done + done, underway=())

    def _note(self, **changes: Any) -> None:
        """Written with the next batch."""
        self._stored = StoredOperation(replace(self._stored.operation, **changes), self._stored.revision)

    def _save(self, **changes: Any) -> Operation | None:
        """Writes the operation. If it was stopped meanwhile, writes what was done and returns it as it ended."""
        mine = replace(self._stored.operation, **changes)
        try:
            self._stored = self._store.save(mine, self._stored.revision)
            return None
        except Conflict:
            found = self._store.get(mine.id)
            if found is None or found.operation.owner != self._stored.operation.owner or not found.operation.is_ended:
                raise
            stopped = replace(found.operation, done=self._stored.operation.done, underway=())
            self._stored = self._store.save(stopped, found.revision)
            return self._stored.operation


SWEEP_S = 3600.0


class UploadSweep:
    """Removes abandoned uploads now and then, in a thread of its own: at the start of a server, then every SWEEP_S.

    What a kill -9 leaves: nothing of its own. The next server goes on.

    Does nothing without a directory."""

    def __init__(self, directory: str, emit: Emit) -> None:
        self._directory = directory
        self._emit = emit
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upload sweep", daemon=True)

    def start(self) -> None:
        if self._directory:
            self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            count = remove_abandoned(os.fsencode(self._directory), time.time(), self._is_stopping.is_set)
            if count:
                self._emit(UploadsRemoved(count, self._directory))
            self._is_stopping.wait(SWEEP_S)
