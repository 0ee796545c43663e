"""The text of `fileq schedule list|show|next`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fileq.commands.admin.formatting import Cell, Screen, table
from fileq.commands.admin.schedules import ScheduledTime, ScheduleView
from fileq.core.text import printable
from fileq.core.units import format_duration

_STYLES = {"broken": "red", "late": "red", "incomplete": "yellow", "paused": "yellow"}


def render_list(schedules: Sequence[ScheduleView], screen: Screen) -> list[str]:
    if not schedules:
        return ["no schedules; 'schedules' in the configuration or 'fileq schedule add' defines one"]
    rows: list[list[str | Cell]] = [["name", "status", "when", "next", "last job", "runs", "missed"]]
    for one in schedules:
        when = f"{one.cron} {one.timezone}".strip()
        row: list[str | Cell] = [printable(one.name), Cell(one.status, _STYLES.get(one.status, ""))]
        row += [printable(when), one.next.local if one.next else "-", one.last_outcome or "-"]
        rows.append([*row, str(one.runs), str(one.missed_count)])
    lines = table(rows, screen, right=(5, 6), flexible=2, from_left=False)
    return [*lines, *(printable(f"{one.name}: {one.problem}") for one in schedules if one.problem)]


def render_one(one: ScheduleView, times: Sequence[ScheduledTime], screen: Screen) -> list[str]:
    payload = msgspec.json.encode(one.payload).decode() if one.payload else ""
    last = f"{one.last.local} ({one.last.utc})" if one.last else "never"
    job = f"{one.last_job_id} ({one.last_outcome or 'its record is gone'})" if one.last_job_id else ""
    rows = {
        "name": one.name,
        "status": f"{one.status}: {one.problem}" if one.problem else one.status,
        "from": one.source,
        "when": f"{one.cron} in {one.timezone}",
        "in words": one.words,
        "job type": one.type,
        "payload": payload,
        "priority": one.priority,
        "missed": one.missed,
        "overlap": one.overlap,
        "within": format_duration(one.within_s),
        "max_retries": "" if one.max_retries is None else str(one.max_retries),
        "timeout": "" if one.timeout_s is None else format_duration(one.timeout_s),
        "last": last,
        "last job": job,
        "runs": f"{one.runs}, missed {one.missed_count}",
    }
    lines = [f"{name:<12} {printable(value)}" for name, value in rows.items() if value]
    return [*lines, *(["", "next times", *render_times(times, screen)] if times else [])]


def render_times(times: Sequence[ScheduledTime], screen: Screen) -> list[str]:
    rows = [["local", "UTC"], *([time.local, time.utc] for time in times)]
    return table(rows, screen)
