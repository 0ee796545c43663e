"""What happens to a file once its job is settled: it is kept, deleted or moved (`worker.after`).

Acts only after the broker has accepted the settlement, never before; FileAction says how. The settlement carries an
order, which the broker keeps until the action is done.

The order for a member of a delivery waits until the delivery is sealed: before that a producer compares its files with
their manifest, and a file that is gone can't be compared.

What a kill -9 leaves: orders on the broker. Another worker does them (OrderRecovery). Until then their files are in
their directories, one of them perhaps under its private name. The ledger knows their version, so no producer enqueues
them again.
"""

from __future__ import annotations

import hashlib
import os
import queue
import stat
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import LEDGER_DEPTH, LedgerEntry, Record
from fileq.config import Config
from fileq.config.value_types import MOVE
from fileq.core.batch import BatchState
from fileq.core.errors import BrokerError
from fileq.core.events import Emit, FileKept, ignore
from fileq.core.job import Claim, State, Version, decode_or_none, split_signature
from fileq.core.settlement import Settlement, Verb
from fileq.files.beneath import make_directories, open_directory_in, open_without_links
from fileq.files.exclusive_move import Place, lasting_names, move_into, private_name, take
from fileq.files.paths import directory_problem
from fileq.files.status import changed_version, signature_of
from fileq.worker.deferrals import RootsWatch
from fileq.worker.lease import Lease
from fileq.worker.settlements import rules_of

FINISHED_AT_ONCE = 100  # orders of one round trip


class PostActions:
    """Carries out the orders of settlements that the broker has accepted, in a thread of its own, so that a slow disk
    does not delay the pump."""

    def __init__(self, config: Config, broker: FullBroker, emit: Emit) -> None:
        self._orders = _Orders(config, broker, emit)
        self._broker = broker
        self._queue: queue.SimpleQueue[FileAction | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, settlement: Settlement) -> None:
        if (action := self._orders.action(settlement.claim.id, settlement.order)) is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="post_actions", daemon=True)
            self._thread.start()
        self._queue.put(action)

    def close(self, timeout_s: float) -> None:
        """Waits for the actions that were added, but not longer than this."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        done: list[tuple[str, bytes]] = []
        while (action := self._queue.get()) is not None:
            if not self._orders.is_delivery_open(action) and (moved_to := self._orders.do(action)) is not None:
                done.append((action.id, moved_to))
            if self._queue.empty() or len(done) >= FINISHED_AT_ONCE:
                self._finish(done)
                done = []
        self._finish(done)

    def _finish(self, done: list[tuple[str, bytes]]) -> None:
        if done:
            with suppress(BrokerError):  # the orders stay, and a worker finds later that they are done
                self._broker.finish_orders(done)


class _Orders:
    """What an order means by the configuration of this worker."""

    def __init__(self, config: Config, broker: FullBroker, emit: Emit) -> None:
        self._rules = rules_of(config.worker.after)
        self._paths = config.paths
        self._broker = broker
        self._emit = emit

    def action(self, id: str, order: bytes) -> FileAction | None:
        """None if this worker keeps such files."""
        first, _, path = order.partition(b"\n")
        verb, _, details = first.decode(errors="replace").partition(" ")
        processed, _, delivery = details.partition(" ")
        rule = self._rules.get(Verb(verb)) if verb in list(Verb) else None
        if rule is None or not path:
            return None
        paths = self._paths
        return FileAction(id, rule, paths.here(path), paths.allowed, paths.folders, processed or None, delivery)

    def is_delivery_open(self, action: FileAction) -> bool:
        """Whether the file is a member of a delivery that is not sealed yet, or may be: the broker does not answer."""
        if not action.delivery:
            return False
        try:
            [batch] = self._broker.batches_by_id([action.delivery])
        except BrokerError:
            return True
        return batch is not None and batch.state is BatchState.OPEN

    def do(self, action: FileAction, *, looks_for_moved: bool = False) -> bytes | None:
        """The new path of the file, as the broker knows it, or b"" if there is none; None if the action must be
        performed again, or its root is missing."""
        # Looked at before and after: a root that comes back in between does not make its files look deleted.
        if self._is_root_missing(action.path):
            return None
        try:
            moved_to = action.perform()
        except (KeepFile, NotPutBack, OSError, ValueError) as kept:
            if isinstance(kept, OSError) and self._is_root_missing(action.path):
                return None
            if isinstance(kept, FileNotFoundError):
                moved_to = action.find_moved() if looks_for_moved else b""
            else:
                self._emit(FileKept(os.fsdecode(action.path), action.rule, str(kept)))
                return None if isinstance(kept, NotPutBack) else b""
        return self._paths.there(moved_to) if moved_to else b""

    def _is_root_missing(self, path: bytes) -> bool:
        """Whether the innermost root of the path is missing. A path below no root is refused elsewhere."""
        above = [root for root in self._paths.allowed if _is_in(path, root)]
        return bool(above) and directory_problem(max(above, key=len)) != ""


def version_left(path: bytes, claim: Claim) -> Version | None:
    """The version of the file after its handler ran, for handlers that change their file (`in_place`)."""
    if claim.job is None or not path:
        return None
    try:
        return Version(claim.job.path, signature_of(os.stat(path)))
    except OSError:
        return None


# One file is deleted or moved after its job has ended.
#
# Other programs may replace the file at any moment, so it is renamed first, to a private name in its own directory
# that no producer takes. Under that name it is compared with the version that was processed, and then deleted or
# moved. Another version gets its own name back. No other file is ever replaced. A program that has the file open can
# still write to it until the end; only what it wrote before the comparison is noticed.
#
# Others may write to these directories too. Both are opened once, without following links below the trusted roots,
# and every step names the file in the open directory: a link that takes the place of a directory leads nowhere. Only
# regular files are deleted or moved. A link that takes the place of the file at the very last moment is moved back; a
# kill -9 in between leaves it where it was moved to.
#
# What a kill -9 leaves: the file under its own name, under its private name or under its new one. The process that
# performs the action again continues from the private name, which is made of the id of the job.


class KeepFile(Exception):
    """Why the file is neither deleted nor moved."""


class NotPutBack(Exception):
    """The file is kept, but could not get its own name back. The action must be performed again."""


class FileAction(Struct, frozen=True):
    """`rule` is `delete` or `move:DIR`. `roots` are trusted directories, `folders` all that files are moved to.
    `processed` is the signature of the version that was processed. None if it is unknown: then any version counts as
    processed. `delivery` is the batch of the delivery that the file is a member of, "" if it is in none."""

    id: str
    rule: str
    path: bytes
    roots: tuple[bytes, ...]
    folders: tuple[bytes, ...]
    processed: str | None
    delivery: str = ""

    def perform(self) -> bytes:
        """Returns the new path; b"" if the file was not moved. Raises KeepFile or OSError if the file stays."""
        # Every program that can push a job can name any path, and a job refused for its path is a dead job too.
        directory = os.path.realpath(os.path.dirname(self.path))
        bases = [os.path.realpath(root) for root in self.roots]
        if not any(_is_in(directory, base) for base in bases):
            raise KeepFile("it is outside the allowed roots")
        folder = None
        if self.rule != "delete":
            folder = self._target(directory)
            if folder is None:
                return b""
        # A link that takes the place of a directory from now on is an error.
        source = open_without_links(directory, bases)
        try:
            return self._act(source, folder)
        finally:
            os.close(source)

    def _act(self, source: int, folder: bytes | None) -> bytes:
        name = os.path.basename(self.path)
        private = private_name(self._key)
        self._take(source, private)
        try:
            self._check_version(source, private)
            if folder is not None:
                opened = self._open_folder(folder, is_made=True)
                try:
                    moved = move_into(Place(source, private), opened, name, self._key[:16])
                    try:
                        _check_regular(os.stat(moved, dir_fd=opened, follow_symlinks=False))
                    except KeepFile:
                        move_into(Place(opened, moved), source, name)
                        raise
                    return os.path.join(folder, moved)
                finally:
                    os.close(opened)
            os.unlink(private, dir_fd=source)
        except (KeepFile, OSError):
            self._put_back(source, private)
            raise
        return b""

    @property
    def _key(self) -> str:
        """The same in each process that performs the action."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:32]

    def find_moved(self) -> bytes:
        """Where a process that was killed has moved the file; b"" if that is unknown."""
        directory = os.path.realpath(os.path.dirname(self.path))
        if self.rule == "delete" or self.processed is None or (folder := self._target(directory)) is None:
            return b""
        short = split_signature(self.processed).short  # a move to another file system changes the inode
        try:
            opened = self._open_folder(folder, is_made=False)
        except OSError:
            return b""
        try:
            for name in lasting_names(os.path.basename(self.path), self._key[:16]):
                with suppress(OSError):
                    if signature_of(os.stat(name, dir_fd=opened, follow_symlinks=False)) == short:
                        return os.path.join(folder, name)
        finally:
            os.close(opened)
        return b""

    def _take(self, source: int, private: bytes) -> None:
        """The file is under its private name afterwards. A version that was not processed is not touched."""
        try:
            self._check_version(source, private)
        except FileNotFoundError:
            pass
        except KeepFile:
            self._put_back(source, private)
            raise
        else:
            return
        name = os.path.basename(self.path)
        self._check_version(source, name)
        try:
            take(source, name, private)
        except FileExistsError:
            return  # another process performs the same action

    def _check_version(self, source: int, name: bytes) -> None:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        _check_regular(status)
        if self.processed is not None and changed_version(self.path, status, self.processed) is not None:
            raise KeepFile("it is another version now")

    def _put_back(self, source: int, private: bytes) -> None:
        """Gives the file its own name back, or a numbered one if there is a newer file of that name."""
        try:
            move_into(Place(source, private), source, os.path.basename(self.path))
        except FileNotFoundError:
            pass  # another process performs the same action, and has done it
        except OSError as error:
            raise NotPutBack(f"it is now {os.fsdecode(private)}, because of {error}") from error

    def _target(self, directory: bytes) -> bytes | None:
        """The directory that the file is moved to: DIR, and below it the path that the file has below its root.

        None if the file is below DIR already. The path below another `move:DIR` counts as the path below the root. All
        links are resolved, so the path has no `..` in it and never leads out of DIR."""
        folder = self._folder
        bases = {os.path.realpath(base) for base in (*self.roots, *self.folders)}
        base = max((base for base in bases if _is_in(directory, base)), key=len, default=None)
        if base is None or base == os.path.realpath(folder):
            return None
        return os.path.join(folder, directory[len(base) :].lstrip(b"/")).rstrip(b"/")

    def _open_folder(self, target: bytes, *, is_made: bool) -> int:
        """A descriptor of the directory that the file is moved to. Trusted is the root that DIR is in, and otherwise
        DIR itself. No link below that is followed: others may write to it."""
        top = self._root_of_folder()
        if top is None:
            top = self._folder
            if is_made:
                os.makedirs(top, exist_ok=True)
        opened = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return (make_directories if is_made else open_directory_in)(opened, target[len(top.rstrip(b"/")) + 1 :])
        finally:
            os.close(opened)

    def _root_of_folder(self) -> bytes | None:
        """The part of DIR's path that is a root, by whatever links above it; None if DIR is in no root."""
        roots = {os.path.realpath(root) for root in self.roots} - {os.path.realpath(b"/")}
        names = self._folder.split(b"/")
        for count in range(2, len(names) + 1):
            above = b"/".join(names[:count])
            if above != self._folder and os.path.realpath(above) in roots:
                return above
        return None

    @property
    def _folder(self) -> bytes:
        return os.path.abspath(os.fsencode(self.rule.removeprefix(MOVE)))


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        raise KeepFile(f"it is {kind} now, and only regular files are deleted or moved")


def _is_in(directory: bytes, base: bytes) -> bool:
    """Whether the directory is the base or below it. Both are absolute, without links."""
    return directory == base or directory.startswith(base.rstrip(b"/") + b"/")


# Does the orders that workers left behind: what they had to do with files after their jobs, before they were killed.
#
# One process of the fleet does this, the holder of a lease. It takes the orders of slots that are not registered, and
# those older than a heartbeat. Two workers may do the same order: the second one finds that its file is gone. An order
# of a root that is missing waits, and the lease goes to another process, where the root may be there.
#
# What a kill -9 leaves: the orders that are not finished; another worker does them.


LONGEST_TURN_S = 10.0  # a loop that turns for a minute counts as stuck


class OrderRecovery:
    """One look at all orders per turn. Owns no thread."""

    name = "orders"

    def __init__(self, config: Config, broker: FullBroker, roots: RootsWatch, *, emit: Emit = ignore) -> None:
        self._orders = _Orders(config, broker, emit)
        self._lease_ms = round(config.worker.heartbeat_ttl * 1000)
        self._interval_s = config.worker.reap_interval
        self._lease = Lease(broker, "orders", self._interval_s)
        self._broker = broker
        self._roots = roots

    def turn(self) -> float:
        """Does the orders that are left, if this process does that. Returns the seconds until the next turn."""
        if not self._lease.is_mine():
            return self._interval_s
        is_any_left = False
        done: list[tuple[str, bytes]] = []
        ends_s, pause_s = time.monotonic() + LONGEST_TURN_S, self._interval_s
        are_open: dict[str, bool] = {}  # deliveries, which may have very many orders
        for order in self._broker.orders(self._lease_ms):
            action = self._orders.action(order.id, order.body)
            if action is not None and action.delivery not in are_open:
                are_open[action.delivery] = self._orders.is_delivery_open(action)
            if action is not None and are_open[action.delivery]:
                continue
            moved_to = self._do(action) if action is not None else b""
            if moved_to is not None:
                done.append((order.id, moved_to))
            else:
                is_any_left = True
            if len(done) >= FINISHED_AT_ONCE:
                self._broker.finish_orders(done)
                done = []
            if time.monotonic() >= ends_s:
                pause_s = 0.0  # the next turn goes on: the orders that are done are gone
                break
        if done:
            self._broker.finish_orders(done)
        if is_any_left:  # its root is missing here; it may be there for another process
            self._lease.give_back(2 * self._interval_s)
        return pause_s

    def at_end(self) -> None:
        self._lease.give_back()

    def _do(self, action: FileAction) -> bytes | None:
        """As _Orders.do(). Does not touch a file whose root is known to be missing: that may block."""
        return None if self._roots.problem_of(action.path) else self._orders.do(action, looks_for_moved=True)


# Whether a file that has vanished is one that fileq itself took away, after another job of the same version.
#
# The same version can have several jobs: `fileq enqueue` always makes one. If the first of them to run completes and
# `worker.after` moves or deletes the file, the others have nothing left to do, and that is no error. Only reads.


def were_processed(claims: Sequence[Claim], broker: FullBroker, *, takes_completed: bool) -> list[bool]:
    """For each claim: another job of its version was completed after this job had been enqueued, and its file was taken
    away. `takes_completed` is whether `worker.after` of this worker does that: the move itself is recorded a moment
    later than the end of the job."""
    records = broker.records([claim.id for claim in claims])
    entries = broker.lookup([claim.job.path if claim.job is not None else b"" for claim in claims])
    return [
        record is not None and _was_processed(record, entry, broker, takes_completed)
        for record, entry in zip(records, entries, strict=True)
    ]


def _was_processed(record: Record, entry: LedgerEntry | None, broker: FullBroker, takes_completed: bool) -> bool:
    """The ledger names the newest job of the version, and each record the jobs before it. So the jobs of one version
    that wait together are in one chain."""
    signature = _signature(record)
    newest = dict(entry.versions).get(signature or "") if entry is not None else None
    seen = {record.id}
    ids = {*record.after, *([newest] if newest is not None else [])} - seen
    for _ in range(LEDGER_DEPTH):
        if not ids:
            break
        seen |= ids
        others = [
            other for other in broker.records(sorted(ids)) if other is not None and _signature(other) == signature
        ]
        if any(_is_taken(other, record.created_ms, takes_completed) for other in others):
            return True
        ids = {id for other in others for id in other.after} - seen
    return False


def _is_taken(other: Record, since_ms: int, takes_completed: bool) -> bool:
    is_completed_since = other.state is State.COMPLETED and other.ended_ms >= since_ms
    return is_completed_since and (takes_completed or bool(other.moved_to))


def _signature(record: Record) -> str | None:
    job = decode_or_none(record.raw)
    return job.signature if job is not None else None
