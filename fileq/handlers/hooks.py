"""Hooks: which events they can have, and what they are given. runtime/hook_runner.py calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from fileq.core.events import (
    BatchFinished,
    BreakerClosed,
    BreakerOpened,
    BrokerLost,
    BrokerRestored,
    Event,
    JobCancelled,
    JobClaimed,
    JobCompleted,
    JobDead,
    JobDeferred,
    JobFailed,
    JobFenced,
    JobRecovered,
    ScheduleBroken,
    ScheduleFired,
    ScheduleMissed,
)
from fileq.core.public_name import public
from fileq.handlers import extensions
from fileq.handlers.extensions import Extension
from fileq.handlers.targets import is_async, unfitness

# A job that is given back because the worker stops has no hook: nothing happened to it.
HOOK_EVENTS: Mapping[str, type[Event]] = {
    "job.started": JobClaimed,
    **{
        kind.name: kind
        for kind in (
            *(JobCompleted, JobFailed, JobDead, JobCancelled, JobRecovered, JobDeferred, JobFenced),
            *(BreakerOpened, BreakerClosed, BrokerLost, BrokerRestored),
            BatchFinished,
            *(ScheduleFired, ScheduleMissed, ScheduleBroken),
        )
    },
}
_NAMES = {kind: name for name, kind in HOOK_EVENTS.items()}


@public()
class EventView(Struct, frozen=True):
    """One event for a hook. `data` has the fields that docs/events.md lists for it; those that do not apply are left
    out."""

    name: str
    at: datetime
    data: Mapping[str, Any]

    @property
    def job_id(self) -> str:
        """ "" for an event that is not about a job."""
        return str(self.data.get("job_id", ""))

    @property
    def filepath(self) -> str:
        """The file of the job, as its producer knows it; "" without one."""
        return str(self.data.get("filepath", ""))

    @property
    def type(self) -> str:
        return str(self.data.get("type", ""))

    @property
    def error(self) -> str:
        return str(self.data.get("error", ""))


class BoundHook(Struct, frozen=True):
    target: str
    function: Callable[..., Any]
    events: frozenset[type[Event]]
    is_async: bool


def view_of_event(event: Event) -> EventView:
    fields = (name for name in event.__struct_fields__ if name not in event.hidden)
    data = {name: value for name in fields if (value := getattr(event, name)) is not None}
    return EventView(_NAMES[type(event)], datetime.now(UTC), MappingProxyType(data))


def load_hooks(problems: list[str]) -> tuple[BoundHook, ...]:
    """The decorated hooks. Adds what is wrong with them to `problems`."""
    return tuple(hook for one in extensions.EXTENSIONS.hooks.values() if (hook := _bound(one, problems)) is not None)


def _bound(one: Extension, problems: list[str]) -> BoundHook | None:
    where = f"@fileq.hook on {one.target}"
    if fault := unfitness(one.function, "a hook", ("event",)):
        problems.append(f"{where}, which {fault}")
        return None
    wrong = [name for name in one.events if name not in HOOK_EVENTS]
    problems += [f"{where} names the event {name!r}; {_advice(name, HOOK_EVENTS)}" for name in wrong]
    if wrong:
        return None
    return BoundHook(
        one.target, one.function, frozenset(HOOK_EVENTS[name] for name in one.events), is_async(one.function)
    )


def _advice(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
