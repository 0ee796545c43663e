"""Which groups of dead jobs operators have acknowledged, wherever a page shows a group or a dead job. Only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fileq.commands.acknowledgements import Acknowledgement, GroupState, group_state
from fileq.core.job import parse_time
from fileq.queries.dead_jobs import DeadGroup, DeadGroups


class GroupMark(Struct, frozen=True):
    """`since` says how many jobs died after the acknowledgement; "" if none did."""

    state: GroupState = "new"
    acknowledgement: Acknowledgement | None = None
    since: str = ""


UNMARKED = GroupMark()


def mark_of(group: DeadGroup, known: Mapping[str, Acknowledgement]) -> GroupMark:
    """What is known about the cause of the newest job of the group."""
    found = known.get(group.fingerprint)
    if found is None:
        return UNMARKED
    state = group_state(found, group.last)
    return GroupMark(state, found, died_since(group.newest_times, found.at, group.count) if state == "again" else "")


def mark_of_death(fingerprint: str | None, died: str | None, known: Mapping[str, Acknowledgement]) -> GroupMark:
    """What is known about the cause of one dead job. One that died after the acknowledgement is not covered by it."""
    found = known.get(fingerprint or "")
    if found is None:
        return UNMARKED
    state = group_state(found, died)
    return GroupMark(state, found, "died since" if state == "again" else "")


def all_known(groups: DeadGroups | None, marks: Mapping[str, GroupMark]) -> bool:
    """Whether every dead job is in a group that is acknowledged and has not come back. False if not all were seen."""
    if groups is None or groups.is_partial or groups.group_count > len(groups.groups):
        return False
    return all(marks[group.key].state == "acknowledged" for group in groups.groups)


def known_count(groups: DeadGroups | None, marks: Mapping[str, GroupMark]) -> int:
    """How many of the dead jobs that were seen are in such a group."""
    seen = groups.groups if groups is not None else ()
    return sum(group.count for group in seen if marks[group.key].state == "acknowledged")


def died_since(newest: Sequence[str | None], at: str, count: int) -> str:
    """Of the `count` jobs of a group only the newest times are known."""
    acknowledged = parse_time(at)
    times = [parse_time(time or "") for time in newest]
    later = sum(time is not None and acknowledged is not None and time > acknowledged for time in times)
    if not later:
        return ""
    if later == count:
        return "died since" if count == 1 else f"all {count} died since"
    return f"{later} or more of them died since" if later == len(newest) else f"{later} of them died since"
