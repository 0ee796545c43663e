"""Which events a stream wants, and the frames it gets: Server-Sent Events, WebSocket texts, ticks. Does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fileq.client.event_stream import NAMES
from fileq.queries.job_filter import path_matcher
from fileq.server.decoding import invalid
from fileq.server.event_ring import RESET, LiveEvent
from fileq.server.problems import FieldProblem
from fileq.server.request_globs import glob_problems

DEAD = "job.dead"
LIVE_NAMES = tuple(name.replace(":", ".") for name in NAMES)
Text = Annotated[str, Meta(min_length=1, max_length=200)]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`events` are names or globs, such as job.dead; `match` is a glob of paths, as for lists of jobs. `batch` needs
    the records of jobs, so it is slower. With the mode `ticks` at most one frame a second says what changed."""

    events: tuple[Text, ...] = ()
    type: Text | None = None
    match: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    batch: Text | None = None
    mode: Literal["events", "ticks"] = "events"


class LiveFilter(Struct, frozen=True):
    """Compared and hashed by its values: streams with equal filters share their frames."""

    names: frozenset[str] = frozenset()  # empty: all
    type: str | None = None
    match: str | None = None
    batch: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether every event is wanted."""
        return self == LiveFilter()

    def predicate(self, batch_of: Callable[[str], str | None]) -> Callable[[LiveEvent], bool]:
        """`batch_of` returns the batch of a job."""
        matches = _matcher(self.match) if self.match is not None else None

        def is_wanted(event: LiveEvent) -> bool:
            if event.name == RESET:
                return True
            return (
                (not self.names or event.name in self.names)
                and (self.type is None or event.type == self.type)
                and (matches is None or (event.path != "" and matches(event.path.encode(errors="surrogateescape"))))
                and (self.batch is None or batch_of(event.job_id) == self.batch)
            )

        return is_wanted


@lru_cache(maxsize=1024)
def _matcher(match: str) -> Callable[[bytes], bool]:
    return path_matcher(match)


def filter_of(query: EventsQuery, *, hides_paths: bool) -> LiveFilter:
    """Raises ApiProblem for a name that no event has, for a glob that can't be read, or for one of hidden paths."""
    names: set[str] = set()
    problems = []
    for text in query.events:
        found = [name for name in LIVE_NAMES if fnmatchcase(name, text.replace(":", "."))]
        if not found:
            problems.append(FieldProblem("?events", f"no event matches {text!r}; there are {', '.join(LIVE_NAMES)}"))
        names.update(found)
    problems += glob_problems(query.match, "?match", hides_paths=hides_paths)
    if problems:
        raise invalid(problems)
    return LiveFilter(frozenset(names), query.type, query.match, query.batch)


class Tick(Struct, frozen=True):
    """What changed since the last tick: how many events of each name, and the queues of their jobs. `dropped` events
    could not be looked at. `is_reset`: events may be missing. `last_dead` is the id of the job that died last, if one
    did; `last_dead_name` that of its file, or its type."""

    events: dict[str, int]
    queues: tuple[str, ...]
    dropped: int = 0
    is_reset: bool = False
    last_dead: str = ""
    last_dead_name: str = ""


def tick_of(events: list[LiveEvent], dropped: int) -> Tick | None:
    """None if nothing changed."""
    counts = Counter(event.name for event in events)
    is_reset = counts.pop(RESET, 0) > 0
    if not counts and not dropped and not is_reset:
        return None
    queues = sorted({event.queue for event in events if event.queue})
    dead = next((event for event in reversed(events) if event.name == DEAD), None)
    return Tick(
        dict(sorted(counts.items())),
        tuple(queues),
        dropped,
        is_reset,
        dead.job_id if dead is not None else "",
        _name_of(dead) if dead is not None else "",
    )


def _name_of(event: LiveEvent) -> str:
    """As the event says it: the path of the filter is there even if the server hides paths."""
    path = _object(event.data).get("filepath")
    return path.rpartition("/")[2] if isinstance(path, str) and path else event.type or ""


def sse_frame(name: str, data: bytes, id: str) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id.encode(), name.encode(), data)


def text_frame(name: str, data: bytes) -> str:
    """A frame of a WebSocket: the event's JSON. Frames of the server itself have `event` in front."""
    if name.startswith("job."):
        return data.decode()
    return msgspec.json.encode({"event": name, **_object(data)}).decode()


def _object(data: bytes) -> Mapping[str, object]:
    return msgspec.json.decode(data, type=dict[str, object])
