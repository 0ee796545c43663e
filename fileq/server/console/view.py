"""A row of the table of views, what the function of a view gets, and what people noted that views show.

A view only reads. It asks the functions of API endpoints and shows what they return; every action on it is a request
to the API, so that scopes, other sites, the audit and read-only servers are checked in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from fileq.brokers.catalog import Document, Table
from fileq.commands.acknowledgements import ACKNOWLEDGEMENTS, Acknowledgement, GroupState, group_state
from fileq.commands.action_log import ACTIONS, UPLOADS, LoggedAction
from fileq.commands.admin.pauses import HISTORIES, NOTES, PastPause, PauseNote
from fileq.core.api_key import Scope
from fileq.core.job import parse_time
from fileq.queries.dead_jobs import DeadGroup
from fileq.server.console.rendering import moment
from fileq.server.route import ApiRequest, Endpoint

Q = TypeVar("Q")
ViewRequest: TypeAlias = ApiRequest[Q, UnsetType]  # `query` is decoded and valid
Function: TypeAlias = Callable[[ViewRequest[Any]], Mapping[str, Any]]
LONG_SCAN_S = 3.0  # on a busy machine 10,000 dead jobs or files take longer than a view may otherwise


class View(Endpoint, frozen=True, kw_only=True, dict=True):
    """`path` is below /dashboard. The function runs in a thread of the pool and returns the values of the template that
    `request` itself does not have. `letter` is the key after `g` that opens the view; views with a letter are in the
    navigation. `changes_with` are the events after which the view shows something else; `*` is any."""

    title: str
    template: str
    scopes: tuple[Scope, ...] = (Scope.READ,)
    letter: str = ""
    changes_with: str = "job.*"

    @property
    def name(self) -> str:
        """What the view belongs to, in the navigation."""
        return self.path.split("/")[1] if self.path else "overview"


class ViewList(list[View]):
    """The views of a module, in the order in which their functions stand there."""

    def add(self, path: str, title: str, template: str, **options: Any) -> Callable[[Function], Function]:
        """Makes a function a view. `options` are fields of View."""

        def added(function: Function) -> Function:
            self.append(View(path=path, title=title, template=template, function=function, **options))
            return function

        return added


# What people noted, for the views that show it: actions on jobs, pauses with their reasons, acknowledged causes. Only
# reads: the notes of a view come in one round trip, however many kinds of them it needs.

REASON_SHOWN = 200  # characters


class Notes(Struct, frozen=True):
    """What was not asked for is empty. `actions` are the newest first; `pauses` are those that last, by queue, and
    `past_pauses` the last ones that have ended; `acknowledgements` are by fingerprint,
    and `uploads` are documents of UPLOADS."""

    actions: Sequence[LoggedAction]
    pauses: Mapping[str, PauseNote]
    past_pauses: Mapping[str, tuple[PastPause, ...]]
    acknowledgements: Mapping[str, Acknowledgement]
    uploads: Mapping[str, Document]


def read_notes(request: ViewRequest[Any], tables: Iterable[Table[Any]]) -> Notes:
    """One round trip; none without tables."""
    kinds = [table.kind for table in tables]
    found = dict(zip(kinds, request.broker.documents_of(kinds), strict=True)) if kinds else {}

    def of(table: Table[Any]) -> Mapping[str, Document]:
        return found.get(table.kind, {})

    known = {name: request.shown(one) for name, one in ACKNOWLEDGEMENTS.read(of(ACKNOWLEDGEMENTS)).items()}
    if ACKNOWLEDGEMENTS.kind in found:
        request.services.known_causes = known
    return Notes(ACTIONS.newest(of(ACTIONS)), NOTES.read(of(NOTES)), HISTORIES.read(of(HISTORIES)), known, of(UPLOADS))


def pause_words(note: PauseNote) -> str:
    """Since when, by whom and why, as a part of a sentence."""
    return f"since {moment(note.at)} by {note.by}{why(note.reason)}"


def why(reason: str) -> str:
    """The reason after a colon; "" if there is none."""
    text = " ".join(reason.split())
    return f": {text if len(text) <= REASON_SHOWN else f'{text[: REASON_SHOWN - 1]}…'}" if text else ""


# Which groups of dead jobs operators have acknowledged, wherever a view shows a group or a dead job. Only reads.


class GroupMark(Struct, frozen=True):
    """`since` says how many jobs died after the acknowledgement; "" if none did."""

    state: GroupState = "new"
    acknowledgement: Acknowledgement | None = None
    since: str = ""


UNMARKED = GroupMark()


def mark_of(group: DeadGroup, known: Mapping[str, Acknowledgement]) -> GroupMark:
    """What is known about the cause of the newest job of the group."""
    mark = mark_of_death(group.fingerprint, group.last, known)
    found = mark.acknowledgement
    return replace(mark, since=died_since(group.newest_times, found.at, group.count)) if mark.since and found else mark


def mark_of_death(fingerprint: str | None, died: str | None, known: Mapping[str, Acknowledgement]) -> GroupMark:
    """What is known about the cause of one dead job. One that died after the acknowledgement is not covered by it."""
    found = known.get(fingerprint or "")
    if found is None:
        return UNMARKED
    state = group_state(found, died)
    return GroupMark(state, found, "died since" if state == "again" else "")


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
