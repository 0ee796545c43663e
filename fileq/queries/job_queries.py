"""The next jobs of a queue, jobs by state, the history of a job or a file, and why a waiting job does not run.

Must change nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import Record, WorkerView
from fileq.core.documented import means
from fileq.core.errors import BrokerError, ConfigError
from fileq.core.job import State, decode_or_none, split_signature, stamp
from fileq.core.text import printable, quoted_path
from fileq.queries.documents import JobDocument, Time, job_document
from fileq.queries.job_ids import check_length, looks_like_id, why_unknown
from fileq.queries.job_selection import PLACES, matching


def place_named(word: str, queues: Sequence[str]) -> str:
    """The place with this name or alias. The name of a queue has precedence over an alias."""
    place = word if word in queues else {"dlq": "dead_letter", "dead": "dead_letter"}.get(word, word)
    if place not in (known := (*queues, *PLACES)):
        raise ConfigError(f"no queue is named {word!r}; give one of {', '.join(known)}")
    return place


def peek(broker: FullBroker, place: str, limit: int) -> tuple[JobDocument, ...]:
    """The jobs that leave a queue or `scheduled` next; the newest of any other place."""
    return tuple(stored.document() for stored in matching(broker, broker.peek(place, limit), place))


def show(broker: FullBroker, id: str) -> JobDocument:
    """Everything known about one job."""
    [record] = broker.records([id])
    if record is None:
        check_length(id)
        raise BrokerError(why_unknown(id))
    return job_document(record, wait_reasons(broker, [record]).get(id, ()))


class VersionTrace(Struct, frozen=True):
    """One version of a file."""

    signature: Annotated[str | None, means("size-mtime in ns; also -i and the inode, -c and the hash, if recorded")]
    job_id: str
    is_newest: bool
    is_in_ledger: bool
    size: int | None
    modified_ns: int | None
    job: Annotated[JobDocument | None, means("null if its job has ended and the record has expired or was deleted")]


class Maker(Struct, frozen=True):
    """The job that made a file."""

    job_id: str
    path: Annotated[str | None, means("null for a job without a file, or if its record has expired")] = None
    type: str | None = None


class FileTrace(Struct, frozen=True):
    """The history of a file."""

    path: Annotated[str, means("absolute, escaped where it is not UTF-8")]
    missing_since: Annotated[Time, means("since when producers no longer find the file; null if they do")]
    versions: Annotated[tuple[VersionTrace, ...], means("newest first")]
    made_by: Annotated[Maker | None, means("null, or the last job that created the file")] = None
    is_partial: Annotated[bool, means("older records may be missing")] = False


class FileNotKnown(BrokerError):
    """Neither the ledger nor a record has the file."""


def trace(broker: FullBroker, path: bytes, records_max: int = sys.maxsize) -> FileTrace:
    """Everything that the ledger and the records know about a file, newest version first. FileNotKnown if nothing.

    About `records_max` records are searched for jobs that the ledger does not know. Beside that search it takes three
    round trips, one of them only if a job waits."""
    [(entry, maker)] = broker.known_files([path])
    versions = entry.versions if entry is not None else ()
    ids = [*(id for _, id in versions), *([maker] if maker else [])]
    records = dict(zip(ids, broker.records(ids) if ids else (), strict=True))
    known = {id: records[id] for _, id in versions}
    search = _RecordSearch(broker, path, records_max)
    others = [record for record in search.run() if record.id not in known]
    found = [record for record in (*known.values(), *others) if record is not None]
    waits_for = wait_reasons(broker, [record for record in found if record.state.is_waiting])
    traced: list[VersionTrace] = []

    def add(signature: str, id: str, record: Record | None, *, is_in_ledger: bool) -> None:
        job = job_document(record, waits_for.get(id, ())) if record is not None else None
        is_newest = is_in_ledger and not traced
        traced.append(VersionTrace(signature or None, id, is_newest, is_in_ledger, *read_signature(signature), job))

    for signature, id in versions:
        add(signature, id, known[id], is_in_ledger=True)
    for record in sorted(others, key=lambda record: -record.created_ms):
        job = decode_or_none(record.raw)
        add((job.version if job is not None else None) or "", record.id, record, is_in_ledger=False)
    shown = path.decode(errors="backslashreplace")
    made_by = _maker(maker, records[maker]) if maker else None
    if not traced and made_by is None:
        name = os.path.basename(shown)
        advice = "give its path on the producer, below producer.scan_dir, and check include_globs and exclude_globs"
        if looks_like_id(name):
            advice = f"for a job: 'fileq show {name}'; for a file: {advice}"
        raise FileNotKnown(f"nothing is known about {quoted_path(path)}; {advice}")
    missing_since = stamp(entry.missing_since_ms) if entry is not None else None
    return FileTrace(shown, missing_since, tuple(traced), made_by, search.is_partial)


def _maker(id: str, record: Record | None) -> Maker:
    job = decode_or_none(record.raw) if record is not None else None
    return Maker(id, job.filepath or None, job.type) if job is not None else Maker(id)


def read_signature(signature: str) -> tuple[int | None, int | None]:
    """Size and modification time in ns of a version; None for both if the signature has another form."""
    size, _, modified = split_signature(signature).short.partition("-")
    return (int(size), int(modified)) if size.isdigit() and modified.isdigit() else (None, None)


class _RecordSearch:
    """Records of jobs for a file, including jobs that the ledger does not know: those of other programs, and those
    whose file a worker moved to this path."""

    def __init__(self, broker: FullBroker, path: bytes, records_max: int) -> None:
        self._broker = broker
        self._path = path
        self._left = records_max
        self._needle = msgspec.json.encode(os.path.basename(path).decode(errors="backslashreplace"))[1:-1]
        self.is_partial = False

    def run(self) -> Iterator[Record]:
        for page in self._broker.ids():
            if self._left <= 0:
                self.is_partial = True
                return
            self._left -= len(page)
            yield from filter(self._is_about, filter(None, self._broker.records(page)))

    def _is_about(self, record: Record) -> bool:
        if record.moved_to == self._path:
            return True
        # Searching for the name avoids decoding every job. Another program may have escaped it as \uXXXX.
        if self._needle not in record.raw and b"\\u" not in record.raw:
            return False
        job = decode_or_none(record.raw)
        return job is not None and job.path == self._path


def wait_reasons(broker: FullBroker, records: Sequence[Record | None]) -> dict[str, tuple[str, ...]]:
    """By the id of the job; only for jobs that wait, and for those whose worker is gone. The broker is asked once, and
    only if there is a job that waits or runs."""
    unfinished = [record for record in records if record is not None and record.state.is_unfinished]
    if not unfinished:
        return {}
    overview = broker.overview(1)
    living = [view for view in overview.workers if view.is_alive]
    gone = {view.slot for view in overview.workers if not view.is_alive}
    found: dict[str, tuple[str, ...]] = {}
    for one in unfinished:
        if one.state.is_waiting:
            found[one.id] = tuple(_wait_reasons(one, one.queue in overview.census.paused, living))
        elif one.slot in gone:
            next_step = (
                "another one will take the job back" if living else "the next one to start will take the job back"
            )
            found[one.id] = (f"its worker is gone or has lost its heartbeat; {next_step}",)
    return found


def paused_queue(name: str) -> str:
    """What a job in a paused queue waits for."""
    queue = printable(name)
    return f"queue {queue} is paused; 'fileq resume {queue}' resumes it"


def _wait_reasons(record: Record, is_paused: bool, living: Sequence[WorkerView]) -> list[str]:
    """Without a worker a job that is due later does not run either: workers also move due jobs into their queues."""
    queue = printable(record.queue)
    found = [paused_queue(record.queue)] if is_paused else []
    active = [view for view in living if not view.info.is_draining]
    claiming = [view for view in active if record.queue in view.info.queues]
    if not living:
        found.append("no worker is running")
    elif not active:
        found.append("every worker is draining and claims nothing")
    elif not claiming:
        found.append(f"no running worker claims from queue {queue} (worker.priorities)")
    elif record.state is State.PENDING and not is_paused:
        if not any(view.info.is_claiming for view in claiming):
            found.append(f"the circuit breaker of every route is open{_next_try(claiming)}; 'fileq workers' shows why")
        else:
            slots = sum(not view.info.is_extra for view in claiming)
            if sum(bool(view.raw) for view in claiming) >= slots:
                jobs = "1 job" if slots == 1 else f"{slots:,} jobs"
                found.append(f"all slots are busy ({jobs} running)")
    return found


def _next_try(workers: Sequence[WorkerView]) -> str:
    """When the first of them claims a job again to try it; "" if one is being tried now."""
    times = [breaker.next_probe_ms for view in workers for breaker in view.info.breakers]
    if not times or not all(times):
        return ""
    return f", the next job is tried at {time.strftime('%H:%M:%S', time.gmtime(min(times) / 1000))} UTC"
