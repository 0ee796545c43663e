"""The names of routes and their circuit breakers."""

from __future__ import annotations

from typing import Any

import pytest

import fileq
from fileq.config import config_from
from fileq.config.schema import CircuitBreakerSettings
from fileq.core.errors import ConfigError
from fileq.handlers import registry
from fileq.handlers.routes import Routes
from tests.support.config_loading import problems_of

USE = "fileq.handlers:checksum"


@pytest.fixture(autouse=True)
def own_registry() -> None:
    registry.REGISTRY.reset()


def load(*routes: dict[str, Any], **settings: Any) -> Routes:
    return Routes.load(config_from({"handlers": [{"use": USE, **route} for route in routes], **settings}), app_dir="")


def names(*routes: dict[str, Any]) -> list[str]:
    return [route.route_name for route in load(*routes)]


def test_a_route_is_named_by_its_name_else_its_type_else_its_glob() -> None:
    assert names({"match": "**/*.pdf", "name": "papers"}, {"type": "mail"}, {"match": "**/*"}) == [
        *("papers", "mail", "**/*"),
    ]


def test_equal_types_and_globs_are_told_apart() -> None:
    assert names({"match": "*"}, {"match": "*"}, {"type": "x", "name": "* (2)"}) == ["*", "* (3)", "* (2)"]


def test_a_name_given_twice_is_a_problem() -> None:
    routes = [{"match": "a", "use": USE, "name": "x"}, {"match": "b", "use": USE, "name": "x"}]
    assert problems_of({"handlers": routes}) == (
        "handlers[1].name is 'x', which handlers[0].name is too; each route needs a name of its own",
    )


def test_a_decorated_handler_may_have_a_name_and_a_breaker_of_its_own() -> None:
    @fileq.handler(type="mail", name="post", circuit_breaker={"cooldown_period": 5})
    def send(job: Any, context: Any) -> None: ...

    [_, route] = load({"match": "*"})
    assert (route.route_name, route.circuit_breaker) == ("post", CircuitBreakerSettings(cooldown_period=5.0))
    with pytest.raises(ConfigError, match="is named 'post', as another route is"):
        load({"match": "*", "name": "post"})


def test_a_route_inherits_the_keys_of_the_breaker_that_it_does_not_set() -> None:
    general = {"window": "2m", "min_samples": 7}
    unset, own, never = load(
        {"match": "a"},
        {"match": "b", "circuit_breaker": {"min_samples": 3}},
        {"match": "c", "circuit_breaker": {"enabled": False}},
        circuit_breaker=general,
    )
    assert unset.circuit_breaker == CircuitBreakerSettings(window=120.0, min_samples=7)
    assert own.circuit_breaker == CircuitBreakerSettings(window=120.0, min_samples=3)
    assert never.circuit_breaker == CircuitBreakerSettings(window=120.0, min_samples=7, enabled=False)
