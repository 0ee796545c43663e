"""Errors as RFC 9457 describes them: application/problem+json with a stable slug in `type`; and bodies and queries into
Structs, with everything that is wrong at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, Struct, inspect
from msgspec.structs import FieldInfo, fields
from starlette.responses import Response

from fileq.brokers.catalog import check_name
from fileq.core.errors import BatchError, BrokerError, BrokerUnavailable, ConfigError, Conflict, JobError, Unknown
from fileq.queries.job_filter import path_matcher

MEDIA_TYPE = "application/problem+json"

# Slug: status and title. Clients compare slugs, so none is ever renamed.
PROBLEMS: dict[str, tuple[int, str]] = {
    "malformed-request": (400, "The request can't be read"),
    "unauthenticated": (401, "No valid key or session"),
    "forbidden": (403, "The key lacks a scope"),
    "not-allowed": (403, "The key or the server does not allow it"),
    "cross-site": (403, "Cross-site request"),
    "read-only": (403, "The server is read-only"),
    "not-found": (404, "The resource does not exist"),
    "method-not-allowed": (405, "Method not allowed"),
    "not-acceptable": (406, "No acceptable media type"),
    "too-slow": (408, "The body did not arrive in time"),
    "conflict": (409, "Not possible in the current state"),
    "duplicate": (409, "Another caller's job already exists"),
    "batch-closed": (409, "The batch no longer accepts jobs"),
    "count-changed": (409, "More jobs match than expected"),
    "precondition-failed": (412, "The resource is not in the expected state"),
    "too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "Unsupported media type"),
    "wrong-host": (421, "Unknown Host"),
    "invalid": (422, "Invalid request"),
    "digest-mismatch": (422, "The body does not match Content-Digest"),
    "idempotency-mismatch": (422, "The Idempotency-Key was used with a different body"),
    "vetoed": (422, "A before_enqueue function rejected the job"),
    "upgrade-required": (426, "The endpoint is a WebSocket"),
    "precondition-required": (428, "If-Match is required"),
    "rate-limited": (429, "Too many requests"),
    "internal": (500, "Internal server error"),
    "broker-away": (503, "The broker is unavailable"),
    "busy": (503, "The server is overloaded"),
    "stopping": (503, "The server is stopping"),
    "no-space": (507, "The upload disk is full"),
}


class FieldProblem(Struct, frozen=True):
    """`pointer` is a JSON pointer into the body, or the name of a parameter after `?`."""

    pointer: str
    detail: str


class ProblemDocument(Struct, frozen=True, omit_defaults=True):
    """The body of an answer that reports a problem."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: tuple[FieldProblem, ...] = ()


class ApiProblem(Exception):
    """Raised by anything that handles a request; becomes the answer."""

    def __init__(
        self,
        slug: str,
        detail: str,
        *,
        errors: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(f"{slug}: {detail}")
        self.slug = slug
        self.detail = detail
        self.errors = tuple(errors)
        self.status = PROBLEMS[slug][0]
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    def response(self, request_id: str) -> Response:
        status, title = PROBLEMS[self.slug]
        type, instance = f"urn:fileq:problem:{self.slug}", f"urn:fileq:request:{request_id}"
        document = ProblemDocument(type, title, status, self.detail, instance, self.errors)
        return Response(msgspec.json.encode(document), status, self.headers, MEDIA_TYPE)


def broker_away(detail: str) -> ApiProblem:
    return ApiProblem("broker-away", detail, retry_after_s=1)


# The first that fits.
_SLUGS: dict[type[Exception], str] = {
    Unknown: "not-found",
    Conflict: "precondition-failed",
    BatchError: "batch-closed",
    BrokerError: "conflict",
    JobError: "conflict",
}


def problem_of(error: Exception) -> ApiProblem | None:
    """The problem that an error of fileq stands for; None for a defect."""
    if isinstance(error, ApiProblem):
        return error
    if isinstance(error, BrokerUnavailable):
        return broker_away(str(error))
    if isinstance(error, ConfigError):
        return invalid([FieldProblem("", one) for one in error.problems])
    slug = next((slug for kind, slug in _SLUGS.items() if isinstance(error, kind)), "")
    return ApiProblem(slug, str(error)) if slug else None


# Bodies and queries into Structs. An unknown name is reported with the nearest known one.
#
# msgspec stops at the first mistake, so each field is converted by itself; nested Structs, lists and mappings likewise.

S = TypeVar("S", bound=Struct)
ERRORS_MAX = 100  # of one request; a list of a thousand wrong jobs would make a long answer
LOOKED_AT = 2000  # items of a list or members of an object, to find the wrong ones
ADVISED = 10  # unknown names for which a similar one is looked for
NAME_MAX = 50  # characters of such a name


def decode_body(raw: bytes, type: type[S]) -> S:
    """Raises ApiProblem: malformed-request for what is no JSON, invalid for what is not of this type."""
    try:
        return msgspec.json.decode(raw, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # what is wrong is looked for below
    result = _decoded_or_problem(raw, type)
    if isinstance(result, ApiProblem):
        raise result
    return result


def _decoded_or_problem(raw: bytes, type: type[S]) -> S | ApiProblem:
    """Raises nothing: the traceback of an error would keep the value, which may be large, until the next collection."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return ApiProblem("malformed-request", f"the body is not JSON: {error}")
    found = _first(_struct_problems(value, type, "", is_text=False))
    return _converted(value, type, found, is_text=False)


def decode_query(pairs: Sequence[tuple[str, str]], type: type[S]) -> S:
    """A field that is a list takes repeated parameters, or commas; one that is a mapping takes `name.key=value`. An
    empty parameter that may be left out counts as left out: forms send all their fields."""
    known = _fields(type)
    value: dict[str, Any] = {}
    found: list[FieldProblem] = []
    for name, text in pairs:
        outer, dot, key = name.partition(".")
        field = known.get(name) or (known.get(outer) if dot else None)
        if not text and field is not None and field.default is None:
            continue
        if field is not None and dot and _item_type(field.type, dict) is not None:
            value.setdefault(outer, {})[key] = text
        elif field is not None and _item_type(field.type, list, tuple) is not None:
            value.setdefault(name, []).extend(part for part in text.split(",") if part)
        elif name in value:
            found.append(FieldProblem(f"?{name}", f"{name} is given twice"))
        else:
            value[name] = text
    found += _first(_struct_problems(value, type, "?", is_text=True))
    result = _converted(value, type, found, is_text=True)
    if isinstance(result, ApiProblem):
        raise result
    return result


def _converted(value: Any, type: type[S], found: list[FieldProblem], *, is_text: bool) -> S | ApiProblem:
    if not found:
        try:
            return msgspec.convert(value, type, strict=not is_text)
        except (msgspec.ValidationError, RecursionError) as error:  # a rule that concerns several fields
            return invalid_at("?" if is_text else "", str(error).partition(" - at `$")[0])
    return invalid(found)


def invalid(found: Sequence[FieldProblem]) -> ApiProblem:
    """The problem of a request with these mistakes. Beyond ERRORS_MAX they are not counted."""
    more = f"more than {ERRORS_MAX - 5}" if len(found) > ERRORS_MAX else f"{len(found) - 5}"
    shown = "; ".join(one.detail for one in found[:5]) + (f"; and {more} more" if len(found) > 5 else "")
    return ApiProblem("invalid", shown, errors=found[:ERRORS_MAX])


def invalid_at(pointer: str, detail: str) -> ApiProblem:
    return invalid([FieldProblem(pointer, detail)])


def checked_name(kind: str, name: str) -> str:
    """Raises ApiProblem for a name that nothing of this kind can have: there is none."""
    try:
        check_name(kind, name)
    except BrokerError as error:
        raise ApiProblem("not-found", str(error)) from error
    return name


def _first(problems: Iterator[FieldProblem]) -> list[FieldProblem]:
    """As many as are reported, and one to know that there are more."""
    return list(itertools.islice(problems, ERRORS_MAX + 1))


def _struct_problems(value: Any, type: type[Struct], at: str, *, is_text: bool) -> Iterator[FieldProblem]:
    if not isinstance(value, dict):
        yield FieldProblem(at, f"{at or 'the body'} must be an object")
        return
    known = _fields(type)
    for number, name in enumerate(name for name in value if name not in known):
        yield FieldProblem(_below(at, name), _unknown(name, known, is_advised=number < ADVISED))
    for name, field in known.items():
        pointer = _below(at, name)
        if name in value:
            yield from _value_problems(value[name], field.type, name, pointer, is_text=is_text)
        elif field.default is NODEFAULT and field.default_factory is NODEFAULT:
            yield FieldProblem(pointer, f"{name} is missing")


def _value_problems(value: Any, type: Any, name: str, at: str, *, is_text: bool) -> Iterator[FieldProblem]:
    inner = next((one for one in _members(type) if isinstance(one, _TYPE) and issubclass(one, Struct)), None)
    if isinstance(value, dict) and inner is not None:
        yield from _struct_problems(value, inner, at, is_text=is_text)
        return
    try:
        msgspec.convert(value, type, strict=not is_text)
    except msgspec.ValidationError:
        inside = () if is_text else _first(_item_problems(value, type, name, at))
        yield from inside or [FieldProblem(at, f"{name} is {_shown(value)}; it must be {in_words(type)}")]
    except RecursionError:
        yield FieldProblem(at, f"{name} is nested too deeply; send a flatter value")


def _item_problems(value: Any, type: Any, name: str, at: str) -> Iterator[FieldProblem]:
    """What is wrong with the items of a list or with the members of an object."""
    if isinstance(value, list) and (item := _item_type(type, list, tuple)) is not None:
        for index, one in enumerate(value[:LOOKED_AT]):
            yield from _value_problems(one, item, f"{name}[{index}]", f"{at}/{index}", is_text=False)
    if isinstance(value, dict) and (item := _item_type(type, dict)) is not None:
        for key, one in itertools.islice(value.items(), LOOKED_AT):
            yield from _value_problems(one, item, f"{name}.{key[:100]}", _below(at, key), is_text=False)


def _shown(value: Any) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except (ValueError, RecursionError):
        text = "too deep"
    return text if len(text) <= 80 else f"{text[:79]}…"


def _below(at: str, name: str) -> str:
    """The pointer of a member; `~` and `/` are escaped as JSON pointers are."""
    escaped = name[:200].replace("~", "~0").replace("/", "~1")
    return f"?{name[:200]}" if at == "?" else f"{at}/{escaped}"


def _unknown(name: str, known: Mapping[str, FieldInfo], *, is_advised: bool) -> str:
    near = [one for one in known if name in one.split("_")]  # at means scheduled_at rather than path
    near = near or (get_close_matches(name[:NAME_MAX], known, n=1) if is_advised else [])
    advice = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}" if known else "none are allowed here"
    return f"{_shown(name[:100])} is unknown; {advice}"


@cache
def _fields(type: type[Struct]) -> dict[str, FieldInfo]:
    return {field.encode_name: field for field in fields(type)}


def _members(type: Any) -> tuple[Any, ...]:
    """The types of a union, without Annotated around them."""
    if get_origin(type) is not None and hasattr(type, "__metadata__"):
        return _members(get_args(type)[0])
    if type is UNSET or type is None:
        return ()
    arguments = get_args(type)
    origin = get_origin(type)
    is_union = origin is not None and getattr(origin, "__name__", "") in ("Union", "UnionType")
    return tuple(one for argument in arguments for one in _members(argument)) if is_union else (type,)


def _item_type(type: Any, *containers: Any) -> Any:
    """Of the items of a list, or of the values of a mapping; None if the type is neither."""
    found = next((one for one in _members(type) if get_origin(one) in containers), None)
    if found is None:
        return None
    return get_args(found)[1 if dict in containers else 0]


_TYPE = type


@cache
def in_words(type: Any) -> str:
    """What a value of a type must be, for messages about requests: "a whole number from 1 to 1,000". Reads no values.
    `null` is not named: a field that may be null may be left out, too."""
    return _words(inspect.type_info(type))


def _words(type: inspect.Type) -> str:
    match type:
        case inspect.Metadata():
            return _words(type.type)
        case inspect.UnionType():
            return ", or ".join(_words(one) for one in type.types if not isinstance(one, inspect.NoneType))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_range(type.ge, type.le)}"
        case inspect.FloatType():
            return f"a number{_range(type.ge, type.le)}"
        case inspect.StrType():
            rule = f" that matches {type.pattern}" if type.pattern is not None else ""
            return f"a text{_length(type.min_length, type.max_length, 'characters')}{rule}"
        case inspect.DateTimeType():
            return "a time with its zone, such as 2026-01-31T18:00:00Z"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, type.values))}"
        case inspect.EnumType():
            return f"one of {', '.join(str(one.value) for one in type.cls)}"
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list{_length(type.min_length, type.max_length, 'items')}, each {_words(type.item_type)}"
        case inspect.DictType():
            of_each = "" if isinstance(type.value_type, inspect.AnyType) else f", each {_words(type.value_type)}"
            return f"an object{_length(type.min_length, type.max_length, 'members')}{of_each}"
        case inspect.StructType():
            return "an object"
    return "a JSON value"


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return f" of at most {_number(most)}" if most is not None else ""
    return f" from {_number(least)} to {_number(most)}" if most is not None else f" of at least {_number(least)}"


def _length(least: int | None, most: int | None, what: str) -> str:
    if most is not None:
        return f" of {least:,} to {most:,} {what}" if least else f" of at most {most:,} {what}"
    return f" of at least {least:,} {what if least > 1 else what.removesuffix('s')}" if least else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,}"


def glob_problems(pattern: str | None, pointer: str, *, hides_paths: bool) -> list[FieldProblem]:
    """Why a glob can't be used; none if it can, or if there is none. `pointer` is where it is in the request. A server
    that hides paths compares none: otherwise a client could guess them piece by piece."""
    if pattern is None:
        return []
    if hides_paths:
        return [FieldProblem(pointer, "match is set, but server.files is none: this server hides paths")]
    try:
        path_matcher(pattern)
    except ConfigError as error:
        return [FieldProblem(pointer, f"match is {pattern!r}; {problem}") for problem in error.problems]
    return []
