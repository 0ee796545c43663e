"""Argument types that several commands share. An error message names the value and what it must be."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from fileq.cli.command import Argument, Invocation
from fileq.core.errors import ConfigError
from fileq.core.job import ENDED_STATES, State, stamp
from fileq.core.units import parse_duration, parse_point_in_time

if TYPE_CHECKING:
    from fileq.core.units import PointInTime
    from fileq.queries.job_filter import JobFilter

T = TypeVar("T")
LARGEST_NUMBER = 10**9


def argument(*names: str, **settings: Any) -> Argument:
    """An argument or an option of a command, as argparse takes it."""
    return lambda parser: parser.add_argument(*names, **settings)


APP_DIR = argument(
    "--app-dir",
    default="",  # not ".": a directory that was not named is checked before anything is imported from it
    metavar="DIR",
    help="directory with the handlers (default: the working directory, if no one else can write to it)",
)
DRY_RUN = argument("--dry-run", action="store_true", help="change nothing; show what would be done")


def whole_number(at_least: int = 0, at_most: int = LARGEST_NUMBER) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = len(str(at_most))
        if not text.isascii() or not text.isdigit() or (len(text) <= digits and int(text) < at_least):
            raise argparse.ArgumentTypeError(f"is {text!r}; it must be a whole number, {at_least} or more")
        if len(text) > digits or int(text) > at_most:
            raise argparse.ArgumentTypeError(f"is {text[:50]!r}; it must be a whole number, at most {at_most}")
        return int(text)

    return read


def utf8_text(text: str) -> str:
    """Text that a broker can hold; an argument of the command line may be any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be valid UTF-8") from None
    return text


def text_or_empty(text: str) -> str:
    """Marks an argument that may be empty; the parser refuses an empty value of any other."""
    return text


def duration(text: str) -> float:
    """Seconds."""
    return _parsed(parse_duration, text)


def zoned_time(text: str) -> PointInTime:
    """A time without a zone is local time."""
    return _parsed(parse_point_in_time, text)


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be {wrong}") from None


def point_in_time_or_ago(text: str) -> int:
    """Milliseconds since the epoch. A duration such as 2h means two hours ago."""
    with suppress(ValueError):
        return int((time.time() - parse_duration(text)) * 1000)
    try:
        return zoned_time(text).ms
    except argparse.ArgumentTypeError as wrong:
        raise argparse.ArgumentTypeError(f"{wrong}, or a duration such as 2h, which means two hours ago") from None


# The options that choose jobs, the same for every command that has them. They are made from the declaration of the
# conditions in queries/job_filter.py.


STATES = (*(state.value for state in State), "processing", "failed")
UNFINISHED = tuple(state for state in STATES if state not in ENDED_STATES)
ENDED = tuple(state for state in STATES if state in ENDED_STATES)


class StatusOption:
    """Reads --status. `words` are those that make sense for a command; the others are left to the command, whose errors
    say why they do not."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    @property
    def help(self) -> str:
        if len(self.words) == 1:
            return f"{self.words[0]}: the only possible status here"
        return f"only jobs in this status: {', '.join(self.words)}"

    def __call__(self, text: str) -> str:
        if text not in STATES:
            raise argparse.ArgumentTypeError(f"is {text!r}; it must be one of {', '.join(self.words)}")
        return text


def filters(
    *,
    limit: int | None = None,
    time: str = "jobs that ended (or were created, if unfinished)",
    states: tuple[str, ...] = STATES,
    has_batch: bool = True,
) -> Argument:
    """The whole group. `time` says which time of a job --since and --until compare, `states` what --status can be."""
    status = StatusOption(states)
    special: dict[str, dict[str, Any]] = {
        "status": {"type": status, "help": status.help},
        "since": {
            "type": point_in_time_or_ago,
            "help": f"only {time} since: 2h (ago), 2026-11-01, or RFC 3339; local time without a zone",
        },
        "until": {"type": point_in_time_or_ago, "help": f"only {time} until; same formats as --since"},
        "fingerprint": {"type": _fingerprint},
        "tag": {"type": _tag, "action": "append", "default": [], "help": "only jobs with this tag; may be repeated"},
    }

    def add(parser: argparse.ArgumentParser) -> None:
        from fileq.queries.job_filter import declared_conditions

        group = parser.add_argument_group("filters", "combined with AND")
        for name, meaning, value in declared_conditions():
            if name != "batch" or has_batch:
                settings = {"type": utf8_text, "help": f"only {meaning}", **special.get(name, {})}
                group.add_argument(f"--{name}", metavar=value, **settings)
        shown = f"at most N jobs (default: {limit or 'all'})"
        group.add_argument("--limit", type=whole_number(1), default=limit, metavar="N", help=shown)

    return add


def _fingerprint(text: str) -> str:
    if not re.fullmatch("[0-9a-fA-F]{4,12}", text):
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be 4 to 12 hexadecimal digits")
    return text


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = utf8_text(text).partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be NAME=VALUE")
    return name, value


def filter_of(options: argparse.Namespace, queues: Sequence[str]) -> JobFilter:
    from fileq.queries.job_filter import NAMES, JobConditions, read_conditions

    given: dict[str, Any] = {name: getattr(options, name, None) for name in NAMES}
    given |= {"since": stamp(options.since or 0), "until": stamp(options.until or 0), "tag": dict(options.tag)}
    wanted, wrong = read_conditions(JobConditions(**given), queues, time.time_ns() // 1_000_000)
    if wrong:
        raise ConfigError([problem for _, problem in wrong])
    return replace(wanted, limit=options.limit)


def check_choice(options: argparse.Namespace, wanted: JobFilter, command: str, what: str) -> None:
    """ConfigError unless the line gives ids, or --all with any filters."""
    has_filters = _has_filters(wanted)
    if options.ids and (options.all or has_filters):
        raise ConfigError(f"specify either ids or --all with filters such as --match; see '{command} --help'")
    if not options.ids and not options.all:
        named = "filters need --all" if has_filters else f"specify {what} by id, or --all with filters such as --match"
        raise ConfigError(f"{named}; see '{command} --help'")


def check_filtered(options: argparse.Namespace, wanted: JobFilter, command: str, what: str) -> None:
    """ConfigError unless the line gives a filter or --all."""
    if not options.all and not _has_filters(wanted):
        raise ConfigError(f"specify {what} with filters such as --match, or --all; see '{command} --help'")


def _has_filters(wanted: JobFilter) -> bool:
    return wanted.has_conditions or wanted.state is not None or wanted.limit is not None


def check_named(invocation: Invocation, found: int) -> None:
    """Raises if the filter --batch or --schedule found nothing because there is no such batch or schedule. Not earlier:
    jobs may name one that was never created, or is forgotten."""
    from fileq.client.schedule_changes import the_schedule
    from fileq.queries.documents import unknown_batch

    if found:
        return
    batch, schedule = getattr(invocation.options, "batch", None), invocation.options.schedule
    if batch is not None and invocation.broker().batches_by_id([batch]) == [None]:
        raise unknown_batch(batch)
    if schedule is not None and schedule not in invocation.config.schedules:
        the_schedule(invocation.broker(), schedule)
