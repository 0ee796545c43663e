"""on_completed and on_dead in the configuration: never in a circle, and a type without a route is a warning."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import fileq
from fileq.config import config_from
from fileq.core.errors import ConfigError
from fileq.handlers.routes import Routes, made_job_problems

CHECKSUM = "fileq.handlers:checksum"


def load(*routes: dict[str, Any]) -> Routes:
    handlers = [{"use": CHECKSUM, **route} for route in routes]
    return Routes.load(config_from({"handlers": handlers}), app_dir="")


@pytest.mark.parametrize("option", ["on_completed", "on_dead"])
def test_a_route_that_names_its_own_type_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"handlers.0..{option} is 'a', the type of the route itself"):
        load({"type": "a", option: "a"})


def test_routes_that_lead_in_a_circle_are_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        load({"type": "a", "on_completed": "b"}, {"type": "b", "on_dead": "c"}, {"type": "c", "on_completed": "a"})
    assert "handlers[0]: on_completed forms a loop, so jobs would never end: a → b → c → a" in str(raised.value)


def test_a_chain_with_an_end_is_accepted() -> None:
    routes = load(
        {"match": "**/*", "on_completed": "a", "on_dead": "c"},
        {"type": "a", "on_completed": "b", "on_dead": "c"},
        {"type": "b", "on_dead": "c"},
        {"type": "c"},
    )
    assert routes.warnings == ()
    assert (routes[0].on_completed, routes[0].on_dead, routes[3].on_dead) == ("a", "c", None)


def test_a_type_that_no_route_takes_is_a_warning() -> None:
    assert load({"type": "a", "on_dead": "mourn"}).warnings == (
        "handlers[0] has on_dead: mourn, but no route takes jobs of that type: they would be dead",
    )


class Ended(msgspec.Struct):
    id: str
    type: str | None
    path: str
    error: str


class Summed(msgspec.Struct):
    result: int


class Elsewhere(msgspec.Struct):
    customer: str


def test_a_task_that_cannot_take_how_a_job_ended_is_reported_when_its_module_is_loaded() -> None:
    @fileq.task("mourn")
    def mourn(job: fileq.JobView[Ended], context: fileq.Context) -> None: ...

    @fileq.task("add")
    def add(job: fileq.JobView[Summed], context: fileq.Context) -> None: ...

    @fileq.task("forget")
    def forget(job: fileq.JobView[None], context: fileq.Context) -> None: ...

    @fileq.task("bill")
    def bill(job: fileq.JobView[Elsewhere], context: fileq.Context) -> None: ...

    def problems(*routes: dict[str, Any]) -> list[str]:
        config = config_from({"handlers": [{"use": CHECKSUM, **route} for route in routes]})
        return list(made_job_problems(config, Routes.load(config, app_dir="")))

    assert problems({"match": "**/*", "on_dead": "mourn", "on_completed": "add"}) == [], "a result may be anything"
    [none] = problems({"type": "a", "on_dead": "forget"})
    assert "id, type, path, error and result to that of on_completed and on_dead; take JobView[dict]" in none
    wrong, untyped, unfinished = problems(
        {"type": "a", "on_dead": "bill"}, {"type": "b", "on_dead": "mourn"}, {"match": "*", "on_completed": "mourn"}
    )
    assert wrong.startswith("handlers[0] has on_dead: bill; task 'bill' takes a payload of type Elsewhere: ")
    assert wrong.endswith("missing required field `customer`; its jobs would be dead")
    assert "$.path" in untyped, "a job of a type has no file"
    assert "$.error" in unfinished, "a completed job has no error"


@pytest.mark.parametrize("value", ["", " ", "x" * 101])
def test_a_type_must_be_a_short_text(value: str) -> None:
    with pytest.raises(ConfigError, match="on_dead"):
        config_from({"handlers": [{"type": "a", "use": CHECKSUM, "on_dead": value}]})
