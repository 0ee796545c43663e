"""What a job made, and what it was made from, as text."""

from __future__ import annotations

from collections.abc import Iterator

from fileq.commands.admin.formatting import plural
from fileq.core.text import printable
from fileq.queries.job_queries import Maker
from fileq.queries.job_summary import JobHistory

SHOWN = 20  # of each kind


def made_facts(history: JobHistory, *, repeats_name: bool = False) -> Iterator[tuple[str, str]]:
    """Pairs of a name and a value. A name that repeats is empty, unless `repeats_name`."""
    if history.parent_id:
        yield "made from", f"job {printable(history.parent_id)}"
    files = [f"{printable(one.path)} ({plural(one.size, 'byte')})" for one in history.outputs]
    jobs = [f"job {printable(id)}" for id in history.follow_ups]
    lines = [*_first(files, "file"), *_first(jobs, "job")]
    for i, line in enumerate(lines):
        yield "made" if i == 0 or repeats_name else "", line


def made_from(maker: Maker) -> str:
    subject = printable(maker.filepath or maker.type or "")
    job = f"job {printable(maker.job_id)}"
    return f"made from {f'{subject} by ' if subject else ''}{job}"


def _first(lines: list[str], what: str) -> list[str]:
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"and {plural(more, f'more {what}', f'more {what}s')}"] if more > 0 else lines
