"""The ids of jobs: those of bytes that are not a job, and the beginnings that commands accept. Only resolve_ids() asks
a broker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fileq.brokers.protocol import FullBroker
from fileq.core.errors import ConfigError
from fileq.core.job import MADE_ID, decode_or_none, raw_id
from fileq.core.text import printable

UNCLAIMED = "another program pushed it and no worker has claimed it yet"  # such a job has no record
_FEWEST = 4  # hex digits of a prefix
_CANDIDATES_SHOWN = 5
_PREFIX = re.compile(rf"(?=(?:[0-9a-f]-?){{{_FEWEST}}})[0-9a-f-]{{{_FEWEST},35}}|raw-[0-9a-f]{{{_FEWEST},39}}")


def id_in(raw: bytes) -> str:
    job = decode_or_none(raw)
    return job.id if job is not None else raw_id(raw)


def looks_like_id(text: str) -> bool:
    """Whether this may be an id that fileq made, or the beginning of one."""
    return bool(MADE_ID.fullmatch(text) or _PREFIX.fullmatch(text))


def check_length(id: str) -> None:
    """ConfigError for an id of no job that has too few characters to be the beginning of one."""
    if re.fullmatch(rf"(?:raw-)?[0-9a-f]{{1,{_FEWEST - 1}}}", id):
        raise ConfigError(f"{id!r} is too short; give at least {_FEWEST} characters of the id")


def why_unknown(id: str) -> str:
    """Why no job was found by this id, and what to do about it."""
    advice = "for a file: 'fileq trace PATH'" if "/" in id or "." in id else "see 'fileq list'"
    return f"job {id!r} not found: it never existed, its record has expired, or {UNCLAIMED}; {advice}"


def resolve_ids(broker: FullBroker, given: Sequence[str], *, places: Sequence[str] = ()) -> list[str]:
    """The full ids. ConfigError if one is the beginning of several ids; an id that is not found is left as it is.

    Reads the ids of all records, and the jobs in `places`, only if an id looks like a beginning and has no record."""
    unknown = [id for id, record in zip(given, broker.records(given), strict=True) if record is None]
    prefixes = {id for id in unknown if _PREFIX.fullmatch(id)}
    if not prefixes:
        return list(given)
    found: dict[str, set[str]] = {prefix: set() for prefix in prefixes}
    for id in _all_ids(broker, places):
        if MADE_ID.fullmatch(id):
            for prefix in prefixes:
                if id.startswith(prefix):
                    found[prefix].add(id)
    if problems := [_ambiguous(prefix, sorted(ids)) for prefix, ids in sorted(found.items()) if len(ids) > 1]:
        raise ConfigError(problems)
    return [next(iter(found.get(id, ())), id) for id in given]


def _all_ids(broker: FullBroker, places: Sequence[str]) -> Iterator[str]:
    for page in broker.ids():
        yield from page
    for place in places:
        for raws in broker.pages(place):
            yield from map(id_in, raws)


def _ambiguous(prefix: str, ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _CANDIDATES_SHOWN} more" if len(ids) > _CANDIDATES_SHOWN else ""
    candidates = ", ".join(map(printable, ids[:_CANDIDATES_SHOWN]))
    return f"{prefix!r} matches {len(ids)} ids: {candidates}{more}; give more characters"
