"""The files that the ledger knows, by pages and by directory: bounded scans, each file with its newest job.

Changes nothing. The cost depends on SCAN_MAX, never on the length of the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from fileq.brokers.place_pages import LedgerPage, Standing
from fileq.brokers.protocol import FullBroker
from fileq.brokers.types import LedgerEntry, Record
from fileq.core.job import State, stamp
from fileq.core.paging import parts
from fileq.queries.job_filter import path_matcher
from fileq.queries.job_queries import read_signature

SCAN_MAX = 10_000
STATES_MAX = 5_000  # files whose states a page reads, to find those with a status
TREE_MAX = 4_000  # files that a tree counts: it reads the state and the time of each
DIRECTORIES_MAX = 1_000
EXPIRED = "expired"
FileStatus = Literal[
    "pending", "scheduled", "running", "retrying", "deferred", "completed", "dead", "cancelled", "expired"
]  # in the order of the states of jobs
_PAGE = 500
FileEntry = tuple[bytes, LedgerEntry]  # a path, and what the ledger has of it
_COUNTED = ("files", "waiting", "running", "dead", "cancelled")  # fields of DirectoryCounts


class KnownFile(Struct, frozen=True):
    """A file of the ledger with its newest version and that version's job. `status` is that of the job, or `expired`:
    the job has ended, and its record is gone. `missing_since` is when a producer missed the file. `deferred` is why a
    deferred job cannot run yet."""

    path: str
    size: int | None
    modified_at: str | None
    status: str
    job_id: str
    error: str
    enqueued_at: str | None
    missing_since: str | None
    versions: int
    deferred: str = ""


class FilePage(Struct, frozen=True):
    """`next_cursor` is "" at the end. `is_partial`: the scan ended before the ledger did and before the page was full.
    `total` is the number of files; None if it is not known."""

    files: tuple[KnownFile, ...]
    next_cursor: str
    scanned: int
    is_partial: bool
    total: int | None


class DirectoryCounts(Struct, frozen=True):
    """A directory with everything below it. `oldest_unprocessed_at` is since when the oldest file waits or runs,
    `last_arrival_at` when the newest was enqueued."""

    directory: str
    files: int
    waiting: int
    running: int
    dead: int
    cancelled: int
    oldest_unprocessed_at: str | None
    last_arrival_at: str | None


class FileTree(Struct, frozen=True):
    """Directories in the order of their names. `is_partial`: not every file was counted, or not every directory is
    here."""

    directories: tuple[DirectoryCounts, ...]
    scanned: int
    is_partial: bool


class _Seen(Struct):
    counts: Counter[str] = field(default_factory=Counter)  # by the fields of DirectoryCounts
    oldest_ms: int = 0
    newest_ms: int = 0

    def count(self, standing: Standing | None) -> None:
        """Counts one file with its newest job."""
        self.counts["files"] += 1
        if standing is None:
            return
        state, created_ms = standing
        self.newest_ms = max(self.newest_ms, created_ms)
        if state in (State.DEAD, State.CANCELLED):
            self.counts[state.value] += 1
        elif state.is_unfinished:
            self.counts["running" if state is State.RUNNING else "waiting"] += 1
            self.oldest_ms = min(self.oldest_ms or created_ms, created_ms)

    def add(self, other: _Seen) -> None:
        self.counts.update(other.counts)
        self.oldest_ms = min(self.oldest_ms or other.oldest_ms, other.oldest_ms or self.oldest_ms)
        self.newest_ms = max(self.newest_ms, other.newest_ms)


def file_page(
    broker: FullBroker,
    under: str,
    *,
    match: str | None = None,
    status: str | None = None,
    cursor: str = "",
    limit: int = 50,
) -> FilePage:
    """The next files below a directory, about `limit` of them. ConfigError for a glob that can't be read."""
    matches = path_matcher(match) if match is not None else None
    scan_max = STATES_MAX if status is not None else SCAN_MAX
    found: list[KnownFile] = []
    scanned, is_first = 0, not cursor
    size = min(_PAGE, max(1, limit))
    while scanned < scan_max and len(found) < limit:
        page = broker.ledger_page(prefix_of(under), cursor, size)
        scanned += page.scanned
        wanted = [one for one in _with_versions(page) if matches is None or matches(one[0])]
        if status is not None:
            wanted = _with_status(broker, wanted, status)
        found += _known(wanted, _outlines(broker, wanted))
        cursor, size = page.next_cursor, min(2 * size, _PAGE)
        if not cursor:
            break
    is_partial = bool(cursor) and len(found) < limit
    return FilePage(tuple(found), cursor, scanned, is_partial, len(found) if is_first and not cursor else None)


def file_tree(broker: FullBroker, under: str, depth: int) -> FileTree:
    """Counts by directory, down to `depth` levels below the given one. Looks at SCAN_MAX files, and counts TREE_MAX of
    them."""
    return file_tree_and_page(broker, under, depth, limit=0)[0]


def file_tree_and_page(broker: FullBroker, under: str, depth: int, *, limit: int) -> tuple[FileTree, FilePage]:
    """What file_tree() and file_page() without conditions return, from one scan. The page has about `limit` files."""
    prefix, cursor, scanned, counted = prefix_of(under), "", 0, 0
    seen_in: dict[bytes, _Seen] = {}  # by the directory of the files themselves
    listed: list[KnownFile] = []
    following, size = "", limit or _PAGE  # of the page after the first files
    while True:
        page = broker.ledger_page(prefix, cursor, min(_PAGE, size))
        scanned += page.scanned
        counted += len(page.entries)
        entries = _with_versions(page)
        if len(listed) < limit:
            records = _outlines(broker, entries)
            listed += _known(entries, records)
            following = page.next_cursor
            standings = {path: (one.state, one.created_ms) if one else None for path, one in records.items()}
        else:
            found = broker.standings(_newest_jobs(entries)) if entries else []
            standings = dict(zip((path for path, _ in entries), found, strict=True))
        for path, standing in standings.items():
            seen_in.setdefault(path[: path.rfind(b"/")], _Seen()).count(standing)
        cursor, size = page.next_cursor, size if len(listed) < limit else _PAGE
        if not cursor or scanned >= SCAN_MAX or counted >= TREE_MAX:
            break
    directories, is_cut = _with_parents(seen_in, prefix, depth)
    total = len(listed) if not following else None
    first = FilePage(tuple(listed), following, scanned, bool(following) and len(listed) < limit, total)
    return FileTree(directories, scanned, bool(cursor) or is_cut), first


def _with_parents(
    seen_in: Mapping[bytes, _Seen], prefix: bytes, depth: int
) -> tuple[tuple[DirectoryCounts, ...], bool]:
    """Adds the counts of each directory to those above it. Also returns if there were more than DIRECTORIES_MAX."""
    counts: dict[bytes, _Seen] = {}
    is_cut = False
    for leaf, seen in seen_in.items():
        for directory in _directories(leaf + b"/", prefix, depth):
            if directory not in counts and len(counts) >= DIRECTORIES_MAX:
                is_cut = True
                continue
            counts.setdefault(directory, _Seen()).add(seen)
    return tuple(_counted(directory, seen) for directory, seen in sorted(counts.items())), is_cut


def prefix_of(under: str) -> bytes:
    """What the paths below a directory start with; b"" for all paths."""
    return under.rstrip("/").encode(errors="surrogateescape") + b"/" if under else b""


def _with_status(broker: FullBroker, entries: list[FileEntry], status: str) -> list[FileEntry]:
    """Those whose newest job has this status. Reads only the states of the others."""
    states = broker.states(_newest_jobs(entries)) if entries else []
    words = (state.value if state is not None else EXPIRED for state in states)
    return [one for one, word in zip(entries, words, strict=True) if word == status]


def _known(entries: Sequence[FileEntry], records: Mapping[bytes, Record | None]) -> Iterator[KnownFile]:
    for path, entry in entries:
        signature, id = entry.versions[0]
        size, modified_ns = read_signature(signature)
        record = records.get(path)
        yield KnownFile(
            path=path.decode(errors="backslashreplace"),
            size=size,
            modified_at=stamp(modified_ns // 1_000_000) if modified_ns is not None else None,
            status=record.state.value if record is not None else EXPIRED,
            job_id=id,
            error=record.error if record is not None else "",
            enqueued_at=stamp(record.created_ms) if record is not None else None,
            missing_since=stamp(entry.missing_since_ms),
            versions=len(entry.versions),
            deferred=record.deferred if record is not None and record.state is State.DEFERRED else "",
        )


def _outlines(broker: FullBroker, entries: Sequence[FileEntry]) -> dict[bytes, Record | None]:
    """Those of the newest jobs, by the path of the file."""
    found = [record for part in parts(entries, _PAGE) for record in broker.outlines(_newest_jobs(part))]
    return dict(zip((path for path, _ in entries), found, strict=True))


def _directories(path: bytes, prefix: bytes, depth: int) -> Iterator[bytes]:
    """The directory of the prefix and those below it that hold the file, down to the depth."""
    names = path[len(prefix) :].lstrip(b"/").split(b"/")[:-1]
    top = prefix.rstrip(b"/")
    yield top or b"/"
    for level in range(1, min(depth, len(names)) + 1):
        yield top + b"/" + b"/".join(names[:level])


def _with_versions(page: LedgerPage) -> list[FileEntry]:
    return [(path, entry) for path, entry in page.entries if entry.versions]


def _newest_jobs(entries: Sequence[FileEntry]) -> list[str]:
    return [entry.versions[0][1] for _, entry in entries]


def _counted(directory: bytes, seen: _Seen) -> DirectoryCounts:
    return DirectoryCounts(
        directory=directory.decode(errors="backslashreplace"),
        **{name: seen.counts[name] for name in _COUNTED},
        oldest_unprocessed_at=stamp(seen.oldest_ms),
        last_arrival_at=stamp(seen.newest_ms),
    )
