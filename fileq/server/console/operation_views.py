"""Actions on jobs: the operations that do them in the background, and what became of the jobs of one. Only reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.commands.action_log import LoggedAction
from fileq.core.job import DELAYED_STATES, State, parse_time
from fileq.queries.documents import job_document
from fileq.queries.file_pages import EXPIRED
from fileq.server.api.action_endpoints import list_operations
from fileq.server.console.view import ViewList, ViewRequest
from fileq.server.problems import ApiProblem
from fileq.server.route import NoQuery

VIEWS = ViewList()

SHOWN = 50  # jobs of one action
LATEST = 20  # actions of the view of operations
RECENT_S = 900.0
JUST_NOW_S = 60.0  # a person who chose single jobs sees the way to them where they were chosen
_WITH_PATHS = ("match", "q", "error")  # conditions
DONE = {
    JobAction.RETRY: "retried",
    JobAction.CANCEL: "cancelled",
    JobAction.RUN: "run now",
    JobAction.DELETE: "deleted",
}
# How an action may end for a job, in this order: the words of the filters, and what they mean after it.
OUTCOMES: Mapping[str, tuple[State, ...]] = {
    "completed": (State.COMPLETED,),
    "running": (State.RUNNING,),
    "waiting": (State.PENDING, *DELAYED_STATES),
    "dead": (State.DEAD,),
    "cancelled": (State.CANCELLED,),
    EXPIRED: (),
}


class OperationQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Only the jobs that are so now."""

    status: Literal["completed", "running", "waiting", "dead", "cancelled", "expired"] | None = None


class OutcomeCount(Struct, frozen=True):
    status: str
    word: str
    count: int


@VIEWS.add("/admin/operations", "Operations", "admin_operations.html")
def operations(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    """Two round trips."""
    latest = [one for one in request.services.action_log.all() if one.count > 1 or one.conditions]
    return {
        "operations": request.ask(list_operations).operations,
        "latest": [_shown(request, one) for one in latest[:LATEST]],
    }


@VIEWS.add("/admin/operations/{id:path}", "Operation", "operation.html")
def operation(request: ViewRequest[OperationQuery]) -> Mapping[str, Any]:
    """Three round trips: the log, the states of its jobs, and the whole records of those that are listed."""
    id = request.id
    found = next((one for one in request.services.action_log.all() if one.id == id), None)
    if found is None:
        detail = f"no action {id[:100]!r} is in the log; it has the newest ones, each after its first jobs were changed"
        raise ApiProblem("not-found", detail)
    outlines = zip(found.ids, request.broker.outlines(found.ids) if found.ids else (), strict=True)
    words = {state: word for word, states in OUTCOMES.items() for state in states}
    statuses = {id: words[outline.state] if outline is not None else EXPIRED for id, outline in outlines}
    wanted = [job_id for job_id, status in statuses.items() if request.query.status in (None, status)]
    listed = [job_id for job_id in wanted if statuses[job_id] != EXPIRED][:SHOWN]
    records = request.broker.records(listed) if listed else []
    return {
        "action": _shown(request, found),
        "outcomes": outcomes_of(statuses.values(), found.action),
        "jobs": [request.shown(job_document(record)) for record in records if record is not None],
        "matching": len(wanted),
    }


def _shown(request: ViewRequest[Any], action: LoggedAction) -> LoggedAction:
    """Without conditions and errors that may name files, if this server hides them."""
    if not request.services.hides_paths:
        return action
    return replace(action, conditions={k: v for k, v in action.conditions.items() if k not in _WITH_PATHS}, cause="")


def outcomes_of(statuses: Iterable[str], action: JobAction) -> list[OutcomeCount]:
    """How many jobs are in which state now."""
    counts = Counter(statuses)
    words = {JobAction.RETRY: {"dead": "dead again"}, JobAction.DELETE: {EXPIRED: "deleted"}}.get(action, {})
    return [OutcomeCount(word, words.get(word, word), counts[word]) for word in OUTCOMES if counts[word]]


def recent_action(
    request: ViewRequest[Any], actions: Sequence[LoggedAction], conditions: Mapping[str, Any]
) -> LoggedAction | None:
    """The last of the actions on several jobs, if it was a moment ago and belongs to a list with these conditions: from
    there a view leads to its jobs."""
    latest = next((one for one in actions if one.count > 1), None)
    at = parse_time(latest.at) if latest is not None else None
    if latest is None or at is None:
        return None
    age_s = request.services.now_ms() / 1000 - at.timestamp()
    chosen, listed = ({k: v for k, v in one.items() if k != "status"} for one in (latest.conditions, conditions))
    is_own = latest.by == request.caller.name and age_s < JUST_NOW_S and not latest.conditions
    belongs = not listed or listed == chosen or is_own
    return _shown(request, latest) if belongs and age_s <= RECENT_S else None
