"""The stage for `producer.deliveries`: makes files members of their delivery's batch, and seals it when it is complete.

A delivery is sealed when two looks at its directory, some seconds apart, have found it complete: every file is
enqueued, and none arrived or changed in between. At its deadline it is sealed as it is, and jobs that fail with the
reason are added for what is missing. When all jobs have ended, a marker is written into the directory.

Everything that must outlive this process is on the broker: the batch, and the register of the directories. Each step
can be repeated: ids are derived from the batch and the file. A kill -9 leaves an open delivery, which the next producer
looks at again, or a sealed one, whose marker it writes.

Senders write what they like into their directories. An error that one delivery causes stays with it: it is reported
once, and the others go on. Only an outage of the broker ends a turn.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.batches import JoinResult, NewBatch
from fileq.brokers.catalog import Catalog, Table
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Entry, LedgerEntry
from fileq.config import Config
from fileq.config.schema import FAILED_MARKER
from fileq.core import events
from fileq.core.batch import Batch, BatchState, Callback, CallbackKind, callback_job
from fileq.core.delivery import CHECK_TYPE, DeliveryCheck
from fileq.core.errors import BrokerError, BrokerRemoved, BrokerUnavailable, Conflict
from fileq.core.events import Emit
from fileq.core.job import Job, decode_or_none, encode, split_signature, stamp, typed_job
from fileq.core.outcome import follow_up_id
from fileq.core.own_jobs import DELIVERY_BATCHES
from fileq.core.paging import pages, parts
from fileq.files.beneath import open_directory, open_regular_in
from fileq.files.exclusive_move import NEW_FILE, private_name
from fileq.files.status import FoundFile
from fileq.producer.delivery_completion import (
    ChecksumReader,
    DirectoryLook,
    Listed,
    LookLimits,
    ManifestReader,
    awaited,
    listed_files,
    look_at,
    problems_of,
    shown,
    to_be_read,
)
from fileq.producer.finder.scan import DeliveryPlace, ScanRules
from fileq.producer.ledger_stages import FileIdentity
from fileq.producer.markers import Markers

PAGE = 500  # jobs of one broker call
WAITING_MAX = 16  # sealed deliveries of one directory whose end is still to be written down
FAILED_MAX = 10_000  # files that a marker lists
SHORTEST_LOOK_S = 0.2
TURN_S = 1.0  # a turn begins no look after this time
FAILURES_MAX = 1_000  # that are reported
SHARE = 20  # the pause between two looks is this many times as long as one look took


class OpenDelivery(Struct):
    """What this process knows of an open delivery, without its files: there may be very many. `checksums` is None
    unless checksums are being read."""

    batch_id: str
    next_s: float = 0.0
    news_s: float = 0.0  # when something was new last
    files: int = 0  # DirectoryLook.fingerprint() of the last look
    newest_ns: int = 0  # the last change in the directory that was seen
    is_complete: bool = False  # the last look found it complete, and nothing new
    checksums: ChecksumReader | None = None
    error: str = ""


class DeliveryStage:
    def __init__(
        self,
        config: Config,
        broker: FullBroker,
        identity: FileIdentity,
        rules: ScanRules,
        markers: Markers | None,
        emit: Emit,
        monotonic: Callable[[], float],
        wall_ns: Callable[[], int],
        max_memory: int | None,
    ) -> None:
        self._broker = broker
        self._rules = rules
        self._places = rules.deliveries
        self._identity = identity
        self._markers = markers
        self._emit = emit
        self._monotonic = monotonic
        self._wall_ns = wall_ns
        self._queue = config.producer.default_priority
        self._interval_s = max(config.producer.settle_unclosed, SHORTEST_LOOK_S)
        self._register = DeliveryRegister(broker, rules.root)
        self._limits = LookLimits.within(max_memory)
        self._manifests = ManifestReader(wall_ns, self._limits)
        self._open: dict[bytes, OpenDelivery] = {}
        self._created: set[str] = set()  # batches that are known to exist
        self._next_s = 0.0
        self._rest_until_s = 0.0  # no looks until then
        self._next_path = b""  # where the next turn begins, if the last one took too long
        self._failures: set[tuple[bytes, str]] = set()  # those that were reported

    @property
    def is_reading(self) -> bool:
        """Checksums are being read: the next turn should follow at once."""
        return any(one.checksums is not None and not one.checksums.is_done for one in self._open.values())

    @property
    def is_sealing(self) -> bool:
        """A delivery was complete at its last look, and is sealed after the next one."""
        return any(one.is_complete or one.checksums is not None for one in self._open.values())

    # files on their way to the broker

    def joined(self, entry: Entry, file: FoundFile) -> Entry | None:
        """The entry as a member of its delivery; the same entry if the file is in none, or corrects the last one. None
        if its delivery can't be opened: the next scan finds the file again. Raises BrokerError."""
        place = self._places.of(os.path.dirname(file.path))
        if place is None:
            return entry
        joined = None
        with self._alone(place.directory):
            if self._is_correction(place.directory, file.path):
                return entry
            batch_id = self._opened(place).batch_id
            job = entry.job.but(id=_member_id(batch_id, file.path, file.signature), batch_id=batch_id)
            joined = Entry(job, entry.queue, entry.version, joins=True, is_own=True, fills_delivery=True)
        return joined

    def refused(self, entry: Entry, file: FoundFile) -> None:
        """The delivery takes no more files, so the file begins the next one. Raises BrokerError."""
        place = self._places.of(os.path.dirname(file.path))
        if place is not None and entry.job.batch_id is not None:
            with self._alone(place.directory, entry.job.batch_id):
                self._close(place.directory, entry.job.batch_id)

    def _is_correction(self, directory: bytes, path: bytes) -> bool:
        """Whether the last delivery is sealed and has a check for this file, which was missing or differed from the
        manifest. A delivery that begins with it would wait for a manifest in vain. If a new manifest does arrive, the
        delivery that it begins takes the file in: the ledger knows it."""
        if self._register.record(directory).batch_id:
            return False
        self._register.refresh()
        record = self._register.record(directory)
        if record.batch_id or not record.number:
            return False
        check = _check_id(batch_id_of(directory, record.number), shown(path))
        return self._broker.records([check])[0] is not None

    def _opened(self, place: DeliveryPlace) -> DeliveryRecord:
        record = self._register.record(place.directory)
        if not record.batch_id:
            self._register.refresh()
            record = self._register.open(place.directory, self._now_ms())
        if record.batch_id not in self._created:
            self._create(place, record)
        return record

    def _create(self, place: DeliveryPlace, record: DeliveryRecord) -> None:
        settings, directory = place.settings, shown(place.directory)
        callbacks = []
        for kind, type in ((CallbackKind.THEN, settings.then), (CallbackKind.CATCH, settings.catch)):
            if type is not None:
                job = typed_job(type, {"directory": directory}, priority=self._queue, now=datetime.now(UTC))
                callbacks.append(Callback(kind, encode(callback_job(job, record.batch_id, kind)), self._queue))
        may_fail, id = settings.allow_failures, record.batch_id
        new = NewBatch(id, name=directory[-200:], allow_failures=may_fail, callbacks=tuple(callbacks), is_own=True)
        if self._broker.create_batch(new):
            if settings.done_marker:
                # The markers of the delivery before would be read as those of this one.
                with suppress(OSError), self._directory(place) as opened:
                    remove_marker(opened, settings.done_marker)
                    remove_marker(opened, FAILED_MARKER)
            self._emit(events.DeliveryOpened(directory, record.batch_id))
        self._created.add(record.batch_id)

    # looks

    def turn(self, now_s: float) -> None:
        """Looks at the deliveries that are due. Raises BrokerError; the next turn repeats what was not done."""
        self._read_checksums(now_s)
        if now_s < self._rest_until_s:
            return
        began_s = self._monotonic()
        try:
            self._look_at_due(now_s)
        finally:
            # However many deliveries are due, and however long looks at them take, other files have half of the time.
            ended_s = self._monotonic()
            self._rest_until_s = ended_s + (ended_s - began_s)

    def _look_at_due(self, now_s: float) -> None:
        # The deliveries whose marker or manifest was found are opened, unless it is that of an earlier one.
        for directory in self._places.take_announced():
            place = self._places.of(directory)
            if place is None or place.directory != directory:
                continue
            self._register.refresh()
            record = self._register.record(directory)
            with self._alone(directory, record.batch_id), suppress(OSError):
                look = look_at(place, self._rules, self._markers, record.newest_ns, self._limits.listed)
                if look.has_marker or look.manifest is not None:
                    self._opened(place)
        if now_s < self._next_s and not any(one.next_s <= now_s for one in self._open.values()):
            return
        self._next_s = now_s + self._interval_s
        self._register.refresh()
        records, until_s = self._register.records(), self._monotonic() + TURN_S
        first = next((n for n, record in enumerate(records) if record.path == self._next_path), 0)
        for record in (*records[first:], *records[:first]):
            if self._monotonic() > until_s:
                self._next_path, self._next_s = record.path, now_s  # the next turn goes on here
                break
            place = self._places.of(record.path)
            if place is None or place.directory != record.path:
                continue
            for batch_id in record.waiting:
                with self._alone(record.path, batch_id):
                    self._finish(place, batch_id)
            if record.batch_id:
                with self._alone(record.path, record.batch_id):
                    self._look(place, record, now_s)
            elif not record.waiting and not os.path.lexists(record.path):
                self._register.remove(record.path)

    def _read_checksums(self, now_s: float) -> None:
        """Reads for one delivery, in turn: however many there are, the time of a turn is bounded."""
        for directory, one in self._open.items():
            if one.checksums is not None and not one.checksums.is_done:
                self._open[directory] = self._open.pop(directory)  # the last one from now on
                with self._alone(directory, one.batch_id):
                    one.checksums.step()
                    one.next_s = now_s if one.checksums.is_done else one.next_s
                break

    def _look(self, place: DeliveryPlace, record: DeliveryRecord, now_s: float) -> None:
        state = self._open.get(place.directory)
        if state is None or state.batch_id != record.batch_id:
            state = self._open[place.directory] = OpenDelivery(record.batch_id, news_s=now_s)
        deadline, reader = place.settings.deadline, state.checksums
        is_late = deadline is not None and self._now_ms() - record.first_ms >= deadline * 1000
        if reader is not None and not reader.is_done:
            # A sparse file can take years to read. Reading that began at the deadline has as much time again.
            if deadline is None or not is_late or self._monotonic() - reader.began_s < deadline:
                return
            reader.give_up("could not be read in time")
        if now_s < state.next_s:
            return
        self._opened(place)
        began_s = self._monotonic()
        state.next_s = now_s + self._interval_s
        try:
            self._decide(place, record, state, now_s, is_late)
        except BrokerError:
            raise
        except Exception as error:  # what it can't be read for is up to its sender, so it may be anything
            self._report_unreadable(place, state, str(error) or repr(error))
            if is_late:
                problems = problems_of(place, f"it could not be read ({error})", (), DirectoryLook({}), {})
                self._seal(place, state, problems, 0, is_late)
        state.next_s = now_s + max(self._interval_s, (self._monotonic() - began_s) * SHARE)

    def _decide(
        self, place: DeliveryPlace, record: DeliveryRecord, state: OpenDelivery, now_s: float, is_late: bool
    ) -> None:
        look = look_at(place, self._rules, self._markers, record.newest_ns, self._limits.listed)
        self._add_enqueued(look)
        state.newest_ns = max(state.newest_ns, look.newest_ns)
        listed = listed_files(place, look, self._opener(place), self._manifests)
        self._add_earlier(state, look, listed)
        files = look.fingerprint()
        is_enqueued = (state.is_complete and files == state.files) or self._take_known(state, look)
        if files != state.files or not is_enqueued:
            state.news_s, state.files, state.is_complete = now_s, files, False
        view = self._broker.batches_by_id([state.batch_id])[0]
        if view is None or view.state is not BatchState.OPEN:
            self._close(place.directory, state.batch_id)  # another process sealed or cancelled it
            return
        arrived = self._arrived(state.batch_id, [path for path, _ in listed if path not in look.files])
        quiet_s = now_s - state.news_s
        missing = awaited(place, look, listed, members=view.total, arrived=arrived, quiet_s=quiet_s)
        is_done = not missing and is_enqueued
        if not is_late and not (is_done and state.is_complete and state.news_s < now_s):
            state.is_complete = is_done and state.news_s < now_s
            state.checksums = None  # they are those of files that have changed meanwhile
            return
        if state.checksums is None and (unread := to_be_read(listed, look)):
            state.checksums = ChecksumReader(unread, self._opener(place), self._monotonic)
            return
        problems = problems_of(place, missing, listed, look, arrived, state.checksums)
        self._seal(place, state, problems, view.total, bool(missing))

    def _add_enqueued(self, look: DirectoryLook) -> None:
        """Adds the files whose markers were removed because they are enqueued."""
        for path, entry in self._looked_up(look.unmarked):
            file = look.unmarked[path]
            if entry is not None and self._identity.entry_if_known(file, entry) is not None:
                look.files[path] = file

    def _take_known(self, state: OpenDelivery, look: DirectoryLook) -> bool:
        """Makes files that the ledger knows from before members too. Returns whether every file is enqueued."""
        unjoined, unknown = list[str](), 0
        for path, entry in self._looked_up(look.files):
            file = look.files[path]
            job_id = self._job_of(file, entry)
            if job_id is None:
                unknown += 1
            elif job_id != _member_id(state.batch_id, path, file.signature):
                unjoined.append(job_id)
        for page in parts(unjoined, PAGE):
            results = self._broker.join_batch(state.batch_id, page)
            unknown += results.count(JoinResult.ELSEWHERE)  # the job of an earlier delivery; it may end soon
        return unknown == 0

    def _add_earlier(self, state: OpenDelivery, look: DirectoryLook, listed: Listed) -> None:
        """Adds the files of the manifest that have not changed since an earlier delivery. Each becomes a member when
        its job has ended, other than by dying; until then it counts as not arrived."""
        jobs: dict[bytes, str] = {}
        for path, entry in self._looked_up(path for path, _ in listed if path in look.earlier):
            if (job_id := self._job_of(look.earlier[path], entry)) is not None:
                jobs[path] = job_id
        for page in parts(list(jobs), PAGE):
            results = self._broker.join_batch(state.batch_id, [jobs[path] for path in page])
            for path, result in zip(page, results, strict=True):
                if result in (JoinResult.JOINED, JoinResult.MEMBER):
                    look.files[path] = look.earlier[path]

    def _job_of(self, file: FoundFile, entry: LedgerEntry | None) -> str | None:
        """The job of this version of the file; None if the ledger does not know it."""
        known = self._identity.entry_if_known(file, entry) if entry is not None else None
        return known.job_of(self._identity.version(file).signature) if known is not None else None

    def _arrived(self, batch_id: str, absent: Sequence[bytes]) -> dict[bytes, int]:
        """Those of these files that were enqueued as members of the delivery before they were moved or deleted, with
        the size of the newest version of each."""
        arrived: dict[bytes, int] = {}
        for path, entry in self._looked_up(absent):
            for text, id in entry.versions if entry is not None else ():
                short = split_signature(text).short
                if _member_id(batch_id, path, short) == id:
                    arrived[path] = int(short.partition("-")[0])
                    break
        return arrived

    def _looked_up(self, paths: Iterable[bytes]) -> Iterator[tuple[bytes, LedgerEntry | None]]:
        for page in parts(list(paths), PAGE):
            yield from zip(page, self._broker.lookup(page), strict=True)

    # the end

    def _seal(
        self, place: DeliveryPlace, state: OpenDelivery, problems: Sequence[DeliveryCheck], files: int, is_late: bool
    ) -> None:
        entries = []
        for check in problems:
            id = _check_id(state.batch_id, check.path)
            job = typed_job(CHECK_TYPE, msgspec.to_builtins(check), priority=self._queue, now=datetime.now(UTC), id=id)
            job = job.but(batch_id=state.batch_id, max_retries=0)
            entries.append(Entry(job, self._queue, joins=True, is_own=True, fills_delivery=True))
        for page in parts(entries, PAGE):
            self._broker.enqueue(page)  # repeated: duplicates, or refused as sealed already
        if self._broker.seal_batch(state.batch_id):
            self._emit(events.DeliverySealed(shown(place.directory), state.batch_id, files, len(problems), is_late))
        self._close(place.directory, state.batch_id)

    def _close(self, directory: bytes, batch_id: str) -> None:
        state = self._open.pop(directory, None)
        self._register.sealed(directory, batch_id, state.newest_ns if state is not None else 0)
        self._created.discard(batch_id)

    def _finish(self, place: DeliveryPlace, batch_id: str) -> None:
        view = self._broker.batches_by_id([batch_id])[0]
        if view is not None and view.state is not BatchState.FINISHED:
            return
        if view is not None:
            if place.settings.done_marker:
                try:
                    with self._directory(place) as opened:
                        write_marker(opened, place.settings.done_marker, view, self._broker)
                except FileNotFoundError:
                    pass  # the directory is gone
                except OSError as error:
                    self._report_unreadable(place, OpenDelivery(batch_id), f"no marker was written: {error}")
            failed = view.dead + view.cancelled + view.deleted
            self._emit(events.DeliveryFinished(shown(place.directory), batch_id, view.total, failed))
        self._register.finished(place.directory, batch_id)

    def _report_unreadable(self, place: DeliveryPlace, state: OpenDelivery, error: str) -> None:
        if error != state.error:
            state.error = error
            self._emit(events.DeliveryUnreadable(shown(place.directory), state.batch_id, error))

    @contextmanager
    def _alone(self, directory: bytes, batch_id: str = "") -> Iterator[None]:
        """What fails here concerns one delivery, which is tried again. Raises only what concerns them all: the broker
        does not answer."""
        try:
            yield
        except (BrokerUnavailable, BrokerRemoved):
            raise
        except Exception as error:
            failure = directory, repr(error)
            if failure not in self._failures and len(self._failures) < FAILURES_MAX:
                self._failures.add(failure)
                self._emit(events.DeliveryFailed(shown(directory), batch_id, repr(error), error))

    @contextmanager
    def _directory(self, place: DeliveryPlace) -> Iterator[int]:
        """The directory of a delivery, opened. Raises OSError, also if a link leads to it that is not followed."""
        opened = open_directory(place.directory, (self._rules.root,), follows_links=self._rules.follows_links)
        try:
            yield opened
        finally:
            os.close(opened)

    def _opener(self, place: DeliveryPlace) -> Callable[[bytes], int]:
        """Opens a file of the delivery for reading: a regular file, to which no link in the delivery leads."""

        def open_file(path: bytes) -> int:
            with self._directory(place) as opened:
                return open_regular_in(opened, path[len(place.directory) + 1 :])

        return open_file

    def _now_ms(self) -> int:
        return self._wall_ns() // 1_000_000


def _member_id(batch_id: str, path: bytes, signature: str) -> str:
    return follow_up_id(batch_id, shown(path), signature)


def _check_id(batch_id: str, path: str) -> str:
    return follow_up_id(batch_id, "check", path)


class DeliveryRecord(Struct, frozen=True, omit_defaults=True):
    """One directory. `first_ms` is the producer's clock, in ms since the epoch. `waiting` are the batches of sealed
    deliveries whose jobs have not all ended yet.

    `newest_ns` is the last change in the directory, by the clock of its file system, when its last delivery was sealed:
    files, markers and manifests that did not change since then belong to an earlier delivery."""

    path: bytes
    number: int = 0  # how many deliveries there were so far
    batch_id: str = ""  # the batch of the delivery that is open
    first_ms: int = 0  # when it was opened
    newest_ns: int = 0
    waiting: tuple[str, ...] = ()


RECORDS = Table[DeliveryRecord]("deliveries", DeliveryRecord)


def document_name(path: bytes) -> str:
    return hashlib.sha256(path).hexdigest()[:32]


def batch_id_of(path: bytes, number: int) -> str:
    """The same for every producer: of two that open a delivery at the same time, both name the same batch."""
    end = os.fsdecode(path)[-40:]
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in end).strip("_")
    return f"{DELIVERY_BATCHES}{name or 'root'}-{document_name(path)[:8]}-{number}"


class DeliveryRegister:
    """What is known of each delivery directory below `root`, kept on the broker, so that restarts and other producers
    go on with it.

    One document of the catalog for each directory. It is written before the batch that it names is created, and every
    change is compared with the revision that was read, so of several producers one opens a delivery and the others use
    it. What a kill -9 leaves: a document whose batch does not exist yet (the next call creates it), or one that says
    `open` although its batch is sealed (the next look corrects it)."""

    def __init__(self, broker: Catalog, root: bytes) -> None:
        self._broker = broker
        self._above = root.rstrip(b"/") + b"/"
        self._known: dict[bytes, tuple[DeliveryRecord, int]] = {}  # with the revision that was read
        self._revision = -1

    def refresh(self) -> None:
        """Reads what other producers have written."""
        revision = self._broker.catalog_revision(RECORDS.kind)
        if revision != self._revision:
            documents = self._broker.documents(RECORDS.kind)
            self._known = {
                record.path: (record, documents[name].revision)
                for name, record in RECORDS.read(documents).items()
                if record.path.startswith(self._above)
            }
            self._revision = revision

    def records(self) -> list[DeliveryRecord]:
        return [record for record, _ in self._known.values()]

    def record(self, path: bytes) -> DeliveryRecord:
        return self._known[path][0] if path in self._known else DeliveryRecord(path)

    def write(self, record: DeliveryRecord) -> DeliveryRecord:
        """Writes a changed record. If another producer was faster, nothing is written, and its record is returned."""
        expected = self._known[record.path][1] if record.path in self._known else 0
        try:
            revision = RECORDS.put(self._broker, document_name(record.path), record, expected)
        except Conflict:
            self._revision = -1
            self.refresh()
            return self.record(record.path)
        self._known[record.path] = record, revision
        if revision == self._revision + 1:  # no other producer has written in between, so there is nothing to read
            self._revision = revision
        return record

    def remove(self, path: bytes) -> None:
        """Forgets a directory that no longer exists."""
        known = self._known.pop(path, None)
        if known is not None:
            try:
                RECORDS.remove(self._broker, document_name(path), known[1])
            except (Conflict, BrokerError):
                self._revision = -1

    def open(self, path: bytes, now_ms: int) -> DeliveryRecord:
        """The record with an open delivery; the caller creates its batch."""
        record = self.record(path)
        if record.batch_id:
            return record
        number = record.number + 1
        return self.write(replace(record, number=number, batch_id=batch_id_of(path, number), first_ms=now_ms))

    def sealed(self, path: bytes, batch_id: str, newest_ns: int) -> None:
        """The delivery of this batch takes no more files."""
        record = self.record(path)
        if record.batch_id == batch_id:
            waiting = (*record.waiting, batch_id)[-WAITING_MAX:]
            newest_ns = max(newest_ns, record.newest_ns)
            self.write(replace(record, batch_id="", first_ms=0, newest_ns=newest_ns, waiting=waiting))

    def finished(self, path: bytes, batch_id: str) -> None:
        record = self.record(path)
        self.write(replace(record, waiting=tuple(one for one in record.waiting if one != batch_id)))


# The marker: a file in the directory that says how the delivery ended, for the programs that sent it.
#
# The sender may write into this directory too. So the file is written under a private name that can't be foreseen and
# did not exist before, below a descriptor of the directory, and renamed: no link, pipe or file that is there already
# is opened. Producers never take a private name.
#
# What a kill -9 leaves: the old marker, or the new one, and perhaps the private file. The delivery still counts as
# not finished, so the next look writes the marker again.


def write_marker(directory: int, done_marker: str, view: Batch, broker: FullBroker) -> None:
    """Writes into the open directory. Raises OSError if it can't be written to."""
    is_success = not (view.dead or view.cancelled or view.deleted)
    name = os.fsencode(done_marker if is_success else FAILED_MARKER)
    counts = {name: getattr(view, name) for name in ("total", "completed", "dead", "cancelled", "deleted")}
    facts = {"batch_id": view.id, "directory": view.name, "finished_at": stamp(view.finished_ms), **counts}
    content = msgspec.json.encode({**facts, "failed": _failed(view.id, broker)})
    content = msgspec.json.format(content, indent=2) + b"\n"
    private = private_name(f"marker{secrets.token_hex(12)}")
    try:
        with open(os.open(private, NEW_FILE, 0o666, dir_fd=directory), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(private, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(private, dir_fd=directory)
        raise
    remove_marker(directory, FAILED_MARKER if is_success else done_marker)


def remove_marker(directory: int, name: str) -> None:
    with suppress(OSError):  # it is not there, or it can't be removed; the new marker has another name
        os.unlink(os.fsencode(name), dir_fd=directory)


def _failed(batch_id: str, broker: FullBroker) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for page in pages(lambda cursor: broker.dead_members(batch_id, cursor)):
        for record in broker.records(page.ids) if page.ids else []:
            job = decode_or_none(record.raw) if record is not None else None
            if record is not None and job is not None:
                found.append({"path": _path_of(job), "job_id": record.id, "error": record.error})
        if len(found) >= FAILED_MAX:
            break
    return sorted(found, key=lambda one: one["path"])[:FAILED_MAX]


def _path_of(job: Job) -> str:
    """The file that the job is about; "" if it is about none. Clients may add any job to a batch."""
    if job.type != CHECK_TYPE:
        return job.filepath
    try:
        return msgspec.json.decode(job.payload or b"", type=DeliveryCheck).path
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""
