"""Workers that run handlers or settings that have changed since: what `dlq retry` puts back would fail again. Only
reads, and compares the clock of each worker with the times of the files here."""

from __future__ import annotations

import os
from collections.abc import Iterable

from fileq.brokers.types import WorkerInfo, WorkerView
from fileq.config import Loaded
from fileq.core.text import printable
from fileq.handlers.source_files import source_files


def note_of_stale_workers(loaded: Loaded, workers: Iterable[WorkerView], app_dir: str = ".") -> str:
    """Names the file that was changed last, if a living worker loaded it before that; "" if none did."""
    files = [*([loaded.path] if loaded.path else []), *source_files(loaded.config, app_dir)]
    changed_ms, file = max(((_modified_ms(file), file) for file in files), default=(0, ""))
    # After a reload the old worker of a process finishes its jobs: it claims nothing, so the newest one counts.
    by_age = sorted((view.info for view in workers if view.is_alive), key=_loaded_ms)
    living = {(info.host, info.pid): info for info in by_age}
    stale = [info for info in living.values() if _loaded_ms(info) < changed_ms]
    if not stale:
        return ""
    name = printable(os.path.relpath(file))
    if len(living) == 1:
        [info] = stale
        process = f"{printable(info.host)} {info.pid}"
        return (
            f"{name} has changed since the worker {process} loaded it; the worker uses the old version until you "
            f"restart it, or run 'kill -HUP {info.pid}' if it is a service"
        )
    number = f"all {len(living)}" if len(stale) == len(living) else f"{len(stale)} of {len(living)}"
    return (
        f"{name} has changed since {number} workers loaded it; they use the old version until you restart them, or "
        "send SIGHUP to those that are services"
    )


def _loaded_ms(info: WorkerInfo) -> int:
    return info.loaded_ms or info.started_ms


def _modified_ms(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns // 1_000_000
    except OSError:
        return 0
