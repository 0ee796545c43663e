"""What happens to a file once its job is settled: it is kept, deleted or moved (`worker.after`).

Acts only after the broker has accepted the settlement, never before; FileAction says how. The settlement carries an
order, which the broker keeps until the action is done.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.protocol import Broker, Order
from fileq.config import MOVE, AfterSettings, Config
from fileq.core.claim import Claim
from fileq.core.errors import BrokerError
from fileq.core.events import Emit, FileKept, ignore
from fileq.core.job import Version, split_signature
from fileq.core.settlement import Settlement, Verb
from fileq.files.beneath import make_directories, open_directory_in, open_without_links
from fileq.files.exclusive_move import Place, lasting_names, move_into, private_name, take
from fileq.files.paths import Paths
from fileq.files.version import changed_version, signature_of
from fileq.worker.roots import RootsWatch
from fileq.worker.slots import Settling

FinishOrders: TypeAlias = Callable[[Sequence[tuple[str, bytes]]], object]  # Broker.finish_orders

FINISHED_AT_ONCE = 100  # orders of one round trip
KEEP = "keep"


class PostActions:
    """Acts in a thread of its own, so that a slow disk does not delay the pump."""

    def __init__(self, rules: AfterSettings, paths: Paths, finish_orders: FinishOrders, emit: Emit = ignore) -> None:
        self._rules = rules_of(rules)
        self._paths = paths
        self._finish_orders = finish_orders
        self._emit = emit
        self._queue: queue.SimpleQueue[FileAction | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def has_rules(self) -> bool:
        return bool(self._rules)

    @property
    def takes_completed(self) -> bool:
        """Whether the file of a completed job is moved or deleted."""
        return Verb.COMPLETE in self._rules

    def with_order(self, settling: Settling) -> Settlement:
        """The settlement to send: with the order to act afterwards, if a rule says so."""
        return with_order(settling.settlement, settling.processed, self._rules)

    def add(self, settlement: Settlement, processed: str | None) -> None:
        """Does with the file what the rule for this settlement says.

        `processed` is the signature of the version that was processed; a file that is another version now is kept."""
        job = settlement.claim.job
        if job is None or not _applies(settlement, self._rules):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="post_actions", daemon=True)
            self._thread.start()
        paths, rule = self._paths, self._rules[settlement.verb]
        self._queue.put(FileAction(job.id, rule, paths.here(job.path), paths.allowed, paths.folders, processed))

    def close(self, timeout_s: float) -> None:
        """Waits for the actions that were added, but not longer than this."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        done: list[tuple[str, bytes]] = []
        while (action := self._queue.get()) is not None:
            moved_to = act(action, self._emit)
            if moved_to is not None:
                done.append((action.id, self._paths.there(moved_to) if moved_to else b""))
            if self._queue.empty() or len(done) >= FINISHED_AT_ONCE:
                self._finish(done)
                done = []
        self._finish(done)

    def _finish(self, done: list[tuple[str, bytes]]) -> None:
        try:
            if done:
                self._finish_orders(done)
        except BrokerError:
            pass  # the orders stay, and a worker finds later that they are done


def rules_of(after: AfterSettings) -> dict[Verb, str]:
    """The rule for each verb whose files are not kept."""
    rules = {Verb.COMPLETE: after.completed, Verb.BURY: after.dead}
    return {verb: rule for verb, rule in rules.items() if rule != KEEP}


def with_order(settlement: Settlement, processed: str | None, rules: Mapping[Verb, str]) -> Settlement:
    """The settlement with the order to act afterwards, if a rule says so."""
    job = settlement.claim.job
    if job is None or not _applies(settlement, rules):
        return settlement
    return replace(settlement, order=order_body(settlement.verb, processed, job.path))


def _applies(settlement: Settlement, rules: Mapping[Verb, str]) -> bool:
    """The file of a superseded job belongs to the job of its newer version, so it is kept. A file at the path of a
    vanished one is not the file of this job."""
    job = settlement.claim.job
    is_ours = job is not None and bool(job.filepath) and not settlement.superseded and not settlement.vanished
    return is_ours and settlement.verb in rules


def order_body(verb: Verb, processed: str | None, path: bytes) -> bytes:
    """What is to be done, as the broker keeps it. Without the rule: each worker follows its own configuration, so a
    program that can write to the broker cannot choose a directory."""
    return f"{verb.value} {processed or ''}\n".encode() + path


def act(action: FileAction, emit: Emit, *, looks_for_moved: bool = False) -> bytes | None:
    """Performs the action. Returns the new path, or b"" if there is none; None if it must be performed again."""
    try:
        return action.perform()
    except FileNotFoundError:
        return action.find_moved() if looks_for_moved else b""
    except NotPutBack as left:
        emit(FileKept(os.fsdecode(action.path), action.rule, str(left)))
        return None
    except (KeepFile, OSError, ValueError) as kept:
        emit(FileKept(os.fsdecode(action.path), action.rule, str(kept)))
        return b""


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
    processed."""

    id: str
    rule: str
    path: bytes
    roots: tuple[bytes, ...]
    folders: tuple[bytes, ...]
    processed: str | None

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
# Takes the orders of slots that are not registered, and those older than a lease. Two workers may do the same order:
# the second one finds that its file is gone. An order of a root that is missing waits.
#
# What a kill -9 leaves: the orders that are not finished; another worker does them.


LONGEST_TURN_S = 10.0  # a loop that turns for a minute counts as stuck


class OrderRecovery:
    """One look at all orders per turn. Owns no thread."""

    name = "orders"

    def __init__(self, config: Config, broker: Broker, paths: Paths, roots: RootsWatch, *, emit: Emit = ignore) -> None:
        self._rules = rules_of(config.worker.after)
        self._lease_ms = round(config.worker.heartbeat_ttl * 1000)
        self._interval_s = config.worker.reap_interval
        self._broker = broker
        self._paths = paths
        self._roots = roots
        self._emit = emit

    def turn(self) -> float:
        """Does the orders that are left. Returns the seconds until the next turn."""
        done: list[tuple[str, bytes]] = []
        ends_s, pause_s = time.monotonic() + LONGEST_TURN_S, self._interval_s
        for order in self._broker.orders(self._lease_ms):
            moved_to = self._do(order)
            if moved_to is not None:
                done.append((order.id, moved_to))
            if len(done) >= FINISHED_AT_ONCE:
                self._broker.finish_orders(done)
                done = []
            if time.monotonic() >= ends_s:
                pause_s = 0.0  # the next turn goes on: the orders that are done are gone
                break
        if done:
            self._broker.finish_orders(done)
        return pause_s

    def _do(self, order: Order) -> bytes | None:
        """The new path of the file, or b"" if there is none; None if the order is to be done later."""
        first, _, path = order.body.partition(b"\n")
        verb, _, processed = first.decode(errors="replace").partition(" ")
        rule = self._rules.get(Verb(verb)) if verb in list(Verb) else None
        if rule is None or not path:
            return b""  # its file is kept by the configuration of this worker
        here = self._paths.here(path)
        if self._roots.problem_of(here):
            return None
        action = FileAction(order.id, rule, here, self._paths.allowed, self._paths.folders, processed or None)
        moved_to = act(action, self._emit, looks_for_moved=True)
        return self._paths.there(moved_to) if moved_to else moved_to
