"""The tables of docs/events.md, docs/metrics.md and docs/settings.md, written from the program. `make docs` runs it;
tests compare."""

from __future__ import annotations

import sys
from pathlib import Path

from fileq.config.resolve import value_at
from fileq.config.schema import Config, every_key, is_setting
from fileq.config.section import to_plain
from fileq.config.show import to_yaml
from fileq.core.events import EVENTS, Event
from fileq.observe.logs import line_fields
from fileq.observe.metrics import METRICS

EVENTS_HEADER = "| event | level | fields | meaning |"
METRICS_HEADER = "| metric | type | label | meaning |"


def event_types() -> list[type[Event]]:
    return [EVENTS[name] for name in sorted(EVENTS)]


def log_table() -> str:
    return "\n".join((EVENTS_HEADER, "|---|---|---|---|", *map(_row, event_types()))) + "\n"


def published_names() -> dict[str, str]:
    """The events that brokers publish → the same transitions in the log."""
    return {kind.published_as: kind.name for kind in event_types() if kind.published_as}


def _row(kind: type[Event]) -> str:
    fields = ", ".join(f"`{name}`" for name in (*line_fields(kind), *_exception(kind)))
    meaning = " ".join((kind.__doc__ or "").split())
    level = kind.level if isinstance(kind.level, str) else "its own"  # a field of the event
    return f"| `{kind.name}` | {level} | {fields} | {meaning} |"


def _exception(kind: type[Event]) -> tuple[str, ...]:
    return ("exception",) if "exception" in kind.hidden else ()


def metrics_table() -> str:
    rows = (f"| `{m.name}` | {m.type} | {f'`{m.label}`' if m.label else ''} | {m.help} |" for m in METRICS)
    return "\n".join((METRICS_HEADER, "|---|---|---|---|", *rows)) + "\n"


def settings_table() -> str:
    rows = [
        f"| `{path}` | `{to_yaml(to_plain(key.shape, value_at(Config(), path)))}` | {key.help.replace('<', '&lt;')} |"
        for path, key in every_key().items()
        if is_setting(key)
    ]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows]) + "\n"


def tables() -> dict[str, str]:
    written = log_table(), metrics_table(), settings_table()
    return {table.partition("\n")[0]: table for table in written}


def with_tables(page: str) -> str:
    """The page with its generated table brought up to date."""
    for header, table in tables().items():
        if header in page:
            start = page.index(header)
            end = page.find("\n\n", start) + 1 or len(page)
            page = page[:start] + table + page[end:]
    return page


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_tables(path.read_text()))


if __name__ == "__main__":
    main()
