"""What a producer reports of itself, as the registry of producers keeps it. Values only."""

from __future__ import annotations

from msgspec import Struct


class ScanInfo(Struct, frozen=True, omit_defaults=True):
    """A scan of the whole scan_dir that has ended."""

    began_ms: int
    ended_ms: int
    found: int  # files that include_globs and exclude_globs select
    is_complete: bool = True  # no error hid a file from it
    skipped: dict[str, int] = {}  # entries that it passed over, by SkipReason


class ProducerInfo(Struct, frozen=True, omit_defaults=True):
    """What a producer reports of itself. All times are the producer's clock. Stored as JSON: new fields go to the end
    and have a default."""

    host: str
    pid: int
    started_ms: int
    version: str
    roots: tuple[str, ...]  # the directories that it scans
    state: str = ""  # scanning, watching, held, lost or stuck
    problem: str = ""  # why a root cannot be scanned
    held_by: str = ""  # the setting that limits enqueueing at the moment
    held_since_ms: int = 0
    last_scan: ScanInfo | None = None
    enqueued: int = 0  # files since the start
    waiting: int = 0  # files that were found and are not enqueued yet


class ProducerView(Struct, frozen=True):
    """One producer whose lease has not ended."""

    id: str
    info: ProducerInfo
