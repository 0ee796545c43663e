"""What is generated in docs/, tables of pages and openapi.json, written from the program. `make docs` runs it; tests
compare."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fileq.cli.command import Command
from fileq.cli.parser import Parser, all_commands, help_of, parser_of
from fileq.config.resolve import value_at
from fileq.config.schema import Config, every_key, is_setting
from fileq.config.section import to_plain
from fileq.config.show import to_yaml
from fileq.core.events import EVENTS, Event
from fileq.observe.logs import line_fields
from fileq.observe.metrics import METRICS
from fileq.server.problems import PROBLEMS
from fileq.server.route import Route
from fileq.server.routes import ROUTES, openapi_json

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
        f"| `{path}` | `{to_yaml(to_plain(key.shape, value_at(Config(), path)))}` | {_cell(key.help)} |"
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


# docs/cli.md and docs/api.md: what stands before the first table is kept.

_COMMON = {"--config", "--set", "--help", "--verbose", "--quiet"}
_INDEX = "| command | purpose |"


def commands_page(page: str) -> str:
    """docs/cli.md with its tables brought up to date; what stands before the first of them is kept."""
    anchors = ((command, command.name.replace(" ", "-")) for command in all_commands())
    rows = [f"| [`{command.name}`](#{anchor}) | {_cell(command.summary)} |" for command, anchor in anchors]
    sections = [line for command in all_commands() for line in _command_section(command)]
    return "\n".join([page.partition(_INDEX)[0] + _INDEX, "|---|---|", *rows, "", *sections])


def _command_section(command: Command) -> Iterator[str]:
    parser = parser_of(command)
    yield from (f"## {command.name}", "", "```", usage(command, parser), "```", "", command.description, "")
    rows = [row for action in parser.actions if (row := _argument_row(action))]
    if rows:
        yield from ("| argument | meaning |", "|---|---|", *rows, "")
    if command.fields:
        yield from ("With `--json`:", "", "| field | type and meaning |", "|---|---|")
        yield from (f"| `{name}` | {_cell(meaning)} |" for name, meaning in command.fields)
        yield ""
    yield "```sh"
    for line, meaning in command.examples:
        yield from (f"# {meaning}", line)
    yield from ("```", "")


def usage(command: Command, parser: Parser) -> str:
    """The usage line. Not argparse's own, which differs between versions of Python."""
    named = [action for action in parser.actions if not action.option_strings]
    shown = {None: "{}", "?": "[{}]", "*": "[{} …]", "+": "{} […]"}
    arguments = [shown[action.nargs].format(action.metavar or action.dest) for action in named]  # type: ignore[index]
    return " ".join([command.name, *arguments, "[options]"])


def _argument_row(action: argparse.Action) -> str:
    """The table row of one argument; "" for the options that every command has."""
    if _COMMON & set(action.option_strings) or action.help == argparse.SUPPRESS:
        return ""
    takes = f" {action.metavar or action.dest.upper()}" if action.option_strings and action.nargs != 0 else ""
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    return f"| `{name}{takes}` | {_cell(help_of(action))} |"


def _cell(text: str) -> str:
    """For a table. A < of text would begin a tag; in a code span it is shown as it is."""
    spans = " ".join(text.split()).replace("|", "\\|").split("`")
    return "`".join(span if number % 2 else span.replace("<", "&lt;") for number, span in enumerate(spans))


def api_page(page: str) -> str:
    """docs/api.md with its tables brought up to date; what stands before the first of them is kept."""
    lines = [page.partition("\n## ")[0]]
    for area in dict.fromkeys(route.area for route in ROUTES):
        lines += [f"## {area.capitalize()}", "", "| request | scope | answer | purpose |", "|---|---|---|---|"]
        lines += [_route_row(route) for route in ROUTES if route.area == area]
        lines.append("")
    lines += ["## Problems", "", "| slug | status | meaning |", "|---|---|---|"]
    lines += [f"| `{slug}` | {status} | {title} |" for slug, (status, title) in PROBLEMS.items()]
    return "\n".join(lines) + "\n"


def _route_row(route: Route) -> str:
    scopes = ", ".join(f"`{scope}`" for scope in route.scopes) or "any key"
    scopes += "" if route.serves_limited else ", whole"
    made = route.response.__name__ if route.response is not None else route.media_type
    statuses = " or ".join(str(status) for status in (route.status, *route.statuses))
    names = [field.encode_name for field in msgspec.structs.fields(route.query)]
    query = f"?{'&'.join(f'{name}=' for name in names)}" if names else ""
    taken = f" {route.body.__name__}" if route.body is not None else ""
    return f"| `{route.method} {route.open_path}{query}`{taken} | {scopes} | {statuses} {made} | {route.summary} |"


def main() -> None:
    writers = {"cli.md": commands_page, "api.md": api_page, "openapi.json": lambda page: openapi_json().decode()}
    for path in map(Path, sys.argv[1:]):
        path.write_text(writers.get(path.name, with_tables)(path.read_text()))


if __name__ == "__main__":
    main()
