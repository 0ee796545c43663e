"""The tables of docs/events.md, written from the event classes. `make docs` updates the page; a test compares it."""

from __future__ import annotations

from collections.abc import Iterator

from fileq.core import events, process_events
from fileq.core.events import AttemptEnded, Event, JobClaimed, JobProduced
from fileq.observe.logs import line_fields

HEADER = "| event | level | fields | meaning |"


def event_types() -> list[type[Event]]:
    """Every event that can be emitted, by name."""
    found = {
        kind.name: kind
        for module in (events, process_events)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Event) and hasattr(kind, "name")
    }
    return [found[name] for name in sorted(found)]


def log_table() -> str:
    return "\n".join((HEADER, "|---|---|---|---|", *map(_row, event_types()))) + "\n"


def published_names() -> Iterator[str]:
    """The names of the events that brokers publish."""
    yield JobProduced.published_as
    yield JobClaimed.published_as
    yield from (kind.published_as for kind in AttemptEnded.__subclasses__() if kind.published_as)


def _row(kind: type[Event]) -> str:
    fields = ", ".join(f"`{name}`" for name in (*line_fields(kind), *_exception(kind)))
    meaning = " ".join((kind.__doc__ or "").split())
    return f"| `{kind.name}` | {kind.level} | {fields} | {meaning} |"


def _exception(kind: type[Event]) -> tuple[str, ...]:
    return ("exception",) if "exception" in kind.hidden else ()


def replace_table(page: str) -> str:
    """The page with its table of log events brought up to date."""
    start = page.index("| event | level |")
    end = page.index("\n\n", start) + 1
    return page[:start] + log_table() + page[end:]


def main() -> None:
    import sys

    sys.stdout.write(replace_table(sys.stdin.read()))


if __name__ == "__main__":
    main()
