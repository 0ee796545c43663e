"""A row of the table of views, what the function of a view gets, what people noted that views show, and templates.

A view only reads. It asks the functions of API endpoints and shows what they return; every action on it is a request
to the API, so that scopes, other sites, the audit and read-only servers are checked in one place.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import Struct, UnsetType
from msgspec.structs import replace

from fileq.brokers.catalog import Document, Table
from fileq.commands.acknowledgements import ACKNOWLEDGEMENTS, Acknowledgement, GroupState, group_state
from fileq.commands.action_log import ACTIONS, UPLOADS, LoggedAction
from fileq.commands.admin.pauses import HISTORIES, NOTES, PastPause, PauseNote
from fileq.core.api_key import Scope
from fileq.core.job import parse_time
from fileq.core.schedule import zone_of
from fileq.queries.dead_jobs import DeadGroup
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


# Templates into HTML. Everything that a template prints is escaped; names of files and errors are never trusted.
#
# A text that is not printable as it is, such as a control character or a mark that turns the direction of writing, is
# shown as an escape, so that it can't disguise what it names. The files that views load are here, too.

THEME_COOKIE, THEMES = "fileq_theme", ("dark", "light")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")  # strftime depends on the locale
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
JSON_SHOWN = 64_000  # characters of the payload or the result of a job
_READABLE = json.JSONEncoder(indent=2, ensure_ascii=False, default=str)
_UNSHOWN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # categories of Unicode


def shown(value: object) -> str:
    """The text with everything that is invisible, or that moves other text, as an escape."""
    text = "" if value is None else str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if unicodedata.category(char) not in _UNSHOWN else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def lines(value: object) -> str:
    """As `shown`, but line breaks stay."""
    return "\n".join(shown(line) for line in str(value or "").splitlines())


def number(value: float | None) -> str:
    """With a thin space between thousands."""
    if value is None:
        return "–"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.1f}".replace(",", "\u202f")
    return f"{int(value):,}".replace(",", "\u202f")


def duration(seconds: float | None) -> str:
    """Two units at most: `3 min 20 s`."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    rest, parts = round(seconds), []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def size(count: float | None) -> str:
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def moment(value: str | None) -> str:
    """A time in RFC 3339 as one that can be handed over: `2026-11-17 19:48:03 UTC`. What another program wrote and is
    no time stays as it is."""
    if not value:
        return "–"
    at = parse_time(value)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at is not None else value


def seconds_between(first: str | None, second: str | None) -> float | None:
    """Of two times in RFC 3339; None if one is missing or is no time, or they are in the wrong order."""
    start, end = parse_time(first or ""), parse_time(second or "")
    if start is None or end is None:
        return None
    between = (end - start).total_seconds()
    return between if between >= 0 else None


def ago(value: str | None, now_ms: int) -> Markup:
    """A time in RFC 3339 as how long ago it was, or will be; the time itself is its title. What another program wrote
    and is no time stays as it is."""
    if not value:
        return Markup("–")
    at = parse_time(value)
    if at is None:
        return escape(shown(value))
    seconds = now_ms / 1000 - at.timestamp()
    if abs(seconds) < 1:
        words = "now"
    elif seconds > 0:
        words = f"{rough(seconds)} ago"
    else:
        words = f"in {rough(-seconds)}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(value, moment(value), words)


def clock_time(value: str, now_ms: int, zone_name: str = "UTC") -> str:
    """A time with an offset as `Wed 18 Nov, 02:00 CET`, in its own zone, of this name; with the year if that is not the
    present one."""
    at = datetime.fromisoformat(value)
    year = "" if at.year == datetime.fromtimestamp(now_ms / 1000, at.tzinfo).year else f" {at.year}"
    zone = _zone_word(at, zone_name)
    return f"{_DAYS[at.weekday()]} {at.day} {_MONTHS[at.month - 1]}{year}, {at:%H:%M} {zone}"


def day_of(ms: int) -> str:
    """In UTC: `15 Feb 2027`."""
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def _zone_word(at: datetime, zone_name: str) -> str:
    """`CET`; the city of a zone that has no such letters."""
    if zone_name == "UTC":
        return "UTC" if not at.utcoffset() else at.isoformat()[-6:]
    letters = at.astimezone(zone_of(zone_name)).tzname() or ""
    return letters if letters.isalpha() else f"in {zone_name.rpartition('/')[2].replace('_', ' ')}"


def rough(seconds: float) -> str:
    """In its largest unit: `3 min`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def as_json(value: object) -> str:
    """Readable JSON, cut after JSON_SHOWN characters: the indents of deeply nested data take up the square of its
    length. What another program stored may be nested too deep to be written."""
    parts, length = [], 0
    try:
        for part in _READABLE.iterencode(value):
            parts.append(part)
            length += len(part)
            if length > JSON_SHOWN:
                break
    except RecursionError:
        length = JSON_SHOWN + 1
    text = lines("".join(parts)[:JSON_SHOWN])
    return text if length <= JSON_SHOWN else f"{text}\n… truncated"


def attribute_json(value: object) -> Markup:
    """JSON for an attribute in double quotes."""
    return escape(json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=str))


def query_string(**values: object) -> str:
    """`?a=b` of those that are not empty; "" without any."""
    given = {name: value for name, value in values.items() if value not in (None, "", False)}
    return f"?{urlencode(given, errors='surrogateescape')}" if given else ""


def path_part(value: object) -> str:
    return quote(str(value), safe="", errors="surrogateescape")


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("fileq.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_finalized,
    )
    filters = (shown, lines, number, duration, rough, size, as_json, attribute_json, path_part, moment)
    made.filters.update({one.__name__: one for one in filters})
    made.globals.update(query_string=query_string, seconds_between=seconds_between, clock_time=clock_time)
    return made


def _finalized(value: Any) -> Any:
    """What a template prints: hostile texts are made harmless even where it does not say so."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return lines(value) if "\n" in value else shown(value)
    return "" if value is None else value


def theme_in(cookies: Mapping[str, str]) -> str:
    """What the user chose in this browser, so that a view is painted with it from the first moment; "" for that of the
    system. The script writes the cookie."""
    given = cookies.get(THEME_COOKIE, "")
    return given if given in THEMES else ""


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(**values)


# The stylesheet, the scripts and the icon: a fixed list of files, read once.

MEDIA_TYPES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "favicon.svg": "image/svg+xml",
}


@cache
def content_of(name: str) -> bytes:
    return files("fileq.server.console").joinpath("static", name).read_bytes()


@cache
def versioned(name: str) -> str:
    """The name with a part of its digest: browsers keep a version for a year, and never use an old one."""
    return f"{name}?v={hashlib.sha256(content_of(name)).hexdigest()[:12]}"


def addresses_below(base: str) -> dict[str, Any]:
    """For a template: `url(path, **query)` of a view, `static(name)` of a file with its version, and the `base`."""

    def url(path: str, /, **query: object) -> str:
        return f"{base}{path}{query_string(**query)}"

    def static(name: str) -> str:
        return f"{base}/static/{versioned(name)}"

    return {"url": url, "static": static, "base": base}
