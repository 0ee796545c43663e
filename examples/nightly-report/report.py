"""Writes a report of the files that arrived in the hours before its time, one file for each night."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

import fileq

REPORTS = "reports"


class Report(Struct):
    directory: str
    scheduled_for: datetime  # fileq adds this one and the next
    missed: int = 0
    hours: float = 24


@fileq.task("report", max_retries=5)
def report(job: fileq.JobView[Report], context: fileq.Context) -> dict[str, Any]:
    wanted = job.payload
    end_s = wanted.scheduled_for.timestamp()
    sizes = [
        status.st_size
        for path in Path(wanted.directory).rglob("*")
        if path.is_file() and 0 <= end_s - (status := path.stat()).st_mtime < wanted.hours * 3600
    ]
    found = {"files": len(sizes), "bytes": sum(sizes), "missed": wanted.missed}
    os.makedirs(REPORTS, exist_ok=True)
    # Named after its time, not after the moment it runs: a repetition writes the same file.
    target = Path(REPORTS, f"{wanted.scheduled_for:%Y-%m-%d}.json")
    temporary = target.with_suffix(f".{context.attempt}.tmp")
    temporary.write_text(json.dumps(found))
    temporary.replace(target)
    return found
