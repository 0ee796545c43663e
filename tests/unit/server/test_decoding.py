"""What a request that is not valid is told: each mistake with its place, the value and what it must be."""

from __future__ import annotations

import enum
import gc
import tracemalloc
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from fileq.server import problems as module
from fileq.server.problems import ERRORS_MAX, ApiProblem, decode_body, decode_query, in_words
from fileq.server.routes import ROUTES


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=1, le=1000)]


class Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=10)]
    count: int | None = None
    share: Annotated[float, Meta(ge=0)] = 0.0
    is_new: bool = False
    colour: Colour | None = None
    mode: Literal["fast", "slow"] = "fast"
    id: Annotated[str, Meta(pattern="^[a-z]+$")] | None = None
    at: Annotated[datetime, Meta(tz=True)] | None = None
    command: str | Annotated[list[str], Meta(min_length=1)] | None = None
    tags: Annotated[dict[str, str], Meta(max_length=2)] = {}
    part: Part | None = None
    parts: Annotated[tuple[Part, ...], Meta(max_length=2)] = ()


def problems(call: Callable[[], object]) -> dict[str, str]:
    with pytest.raises(ApiProblem) as raised:
        call()
    assert raised.value.slug == "invalid"
    return {one.pointer: one.detail for one in raised.value.errors}


def of_body(value: Any) -> dict[str, str]:
    return problems(lambda: decode_body(msgspec.json.encode(value), Wanted))


@pytest.mark.parametrize(
    ("field", "value", "detail"),
    [
        ("name", "", 'name is ""; it must be a text of 1 to 10 characters'),
        ("count", "3", 'count is "3"; it must be a whole number'),
        ("share", -1, "share is -1; it must be a number of at least 0"),
        ("is_new", "yes", 'is_new is "yes"; it must be true or false'),
        ("colour", "green", 'colour is "green"; it must be one of red, blue'),
        ("mode", 3, "mode is 3; it must be one of fast, slow"),
        ("id", "A", 'id is "A"; it must be a text that matches ^[a-z]+$'),
        ("at", "noon", 'at is "noon"; it must be a time with its zone, such as 2026-01-31T18:00:00Z'),
        ("command", {}, "command is {}; it must be a text, or a list of at least 1 item, each a text"),
        ("tags", {c: c for c in "abc"}, "an object of at most 2 members, each a text"),
        ("part", [], "part is []; it must be an object"),
        ("parts", [{"size": 1}] * 3, "it must be a list of at most 2 items, each an object"),
    ],
)
def test_a_wrong_value_is_told_what_it_must_be(field: str, value: Any, detail: str) -> None:
    found = of_body({"name": "a", field: value})
    assert list(found) == [f"/{field}"]
    assert found[f"/{field}"].endswith(detail)


def test_everything_wrong_is_told_at_once_where_it_is() -> None:
    given = {"tags": {"a/b": 1}, "command": ["a", 2], "part": {"size": 0}, "parts": [{"size": 5}, {"sise": 5}]}
    assert of_body(given) == {
        "/name": "name is missing",
        "/tags/a~1b": "tags.a/b is 1; it must be a text",
        "/command/1": "command[1] is 2; it must be a text",
        "/part/size": "size is 0; it must be a whole number from 1 to 1,000",
        "/parts/1/sise": '"sise" is unknown; did you mean size?',
        "/parts/1/size": "size is missing",
    }
    assert len(of_body({"name": "a", "command": [0] * 1000})) == ERRORS_MAX


def test_a_query_is_told_by_the_names_of_its_parameters() -> None:
    found = problems(lambda: decode_query([("name", "a"), ("count", "many"), ("tags.a", "1"), ("x", "")], Wanted))
    assert found["?count"] == 'count is "many"; it must be a whole number'
    assert list(found) == ["?x", "?count"]


def test_every_field_of_every_request_can_be_described() -> None:
    types = {type for route in ROUTES for type in (route.body, route.query) if type is not None}
    for wanted in types:
        for field in msgspec.structs.fields(wanted):
            words = in_words(field.type)
            assert words != "a JSON value" or field.type is Any, f"{wanted.__name__}.{field.name}"


def test_of_many_unknown_fields_a_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medium: unknown JSON fields block the loop: the work for a refusal does not grow with the body."""
    compared = []
    monkeypatch.setattr(module, "get_close_matches", lambda name, known, n: compared.append(name) or [])
    body = {f"{number:x<200}": 1 for number in range(50_000)}
    with pytest.raises(ApiProblem, match=r"; and more than 95 more$") as raised:
        decode_body(msgspec.json.encode({**body, "name": "a"}), Wanted)
    assert len(raised.value.errors) == ERRORS_MAX
    assert len(compared) == module.ADVISED
    assert max(len(name) for name in compared) == module.NAME_MAX


def test_of_a_long_list_the_first_items_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medium: unknown JSON fields block the loop: nor does it grow with a list that is too long."""
    looked_at = []
    problems_of = module._value_problems

    def counted(value: Any, *arguments: Any, **options: Any) -> Any:
        looked_at.append(value)
        return problems_of(value, *arguments, **options)

    monkeypatch.setattr(module, "_value_problems", counted)
    assert list(of_body({"name": "a", "parts": [{"size": 1}] * 100_000})) == ["/parts"]
    assert len(looked_at) <= 2 * module.LOOKED_AT + 10, "each item, and its one field"


def test_the_values_of_a_refused_body_are_not_kept_by_its_error() -> None:
    """Medium: the traceback kept them until the next garbage collection: by then there were those of four bodies."""
    raw = b'{"name":"a","parts":[' + b",".join([b'{"sise":1}'] * 50_000) + b"]}"
    gc.disable()
    tracemalloc.start()
    try:
        with pytest.raises(ApiProblem) as raised:
            decode_body(raw, Wanted)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert raised.value.slug == "invalid"
    assert kept < peak / 4, (kept, peak)
