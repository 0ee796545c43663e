"""A route as a worker uses it, and the routes of jobs of fileq itself, which no configuration has to name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct
from msgspec.json import Decoder

from fileq.config import BackoffSettings, CircuitBreakerSettings, Config
from fileq.core.units import Rate
from fileq.core.webhook import DELIVERY_TYPE, RETRY_DELAYS_S, TIMEOUT_S
from fileq.handlers.registry import RetryIf

BUILT_IN_TIMEOUT_S = 3600.0  # a directory may be large
_MARGIN_S = 10.0  # a delivery ends by itself after TIMEOUT_S; its executor waits a little longer


class BoundRoute(Struct, frozen=True):
    """A route with its handler imported and its options complete: those that it does not set are the worker's.

    A route to a command has no function. A route with neither function nor command runs the commands that jobs contain.
    """

    where: str
    route_name: str
    name: str
    match: str | None
    type: str | None
    function: Callable[..., Any] | None
    command: tuple[str, ...]
    isolation: Literal["process", "thread", "delivery"]
    timeout: float
    max_retries: int
    backoff: BackoffSettings
    in_place: bool
    safe_open: bool
    give_up_on: tuple[int | str, ...]
    circuit_breaker: CircuitBreakerSettings
    is_async: bool
    hidden_variables: tuple[str, ...]  # of the environment, which a command does not get
    max_running: int | None = None
    max_running_total: int | None = None
    rate: Rate | None = None
    is_task: bool = False
    payload_decoder: Decoder[Any] | None = None  # of a task
    retry_if: RetryIf | None = None
    on_completed: str | None = None
    on_dead: str | None = None
    is_built_in: bool = False  # a job of fileq itself, which runs in the worker process, without middleware

    @property
    def is_command(self) -> bool:
        return self.function is None

    def __str__(self) -> str:
        takes = f"type {self.type}" if self.type is not None else f"{self.match}"
        return f"{self.where}: {takes} → {self.name}"


def built_in_route(type: str, function: Callable[..., Any], config: Config) -> BoundRoute:
    """The route of a type of fileq's own jobs."""
    return _own_route(
        type,
        where="built in",
        function=function,
        isolation="thread",
        timeout=max(config.worker.timeout, BUILT_IN_TIMEOUT_S),
        max_retries=config.worker.max_retries,
        backoff=config.worker.backoff,
        is_built_in=True,
    )


def delivery_route() -> BoundRoute:
    return _own_route(
        DELIVERY_TYPE,
        where="webhooks",
        function=None,
        isolation="delivery",
        timeout=TIMEOUT_S + _MARGIN_S,
        max_retries=len(RETRY_DELAYS_S),
        backoff=BackoffSettings.from_list(RETRY_DELAYS_S),
    )


def _own_route(type: str, **options: Any) -> BoundRoute:
    """A route that is named by its type, and that no breaker stops."""
    return BoundRoute(
        route_name=type,
        name=type,
        match=None,
        type=type,
        command=(),
        in_place=False,
        safe_open=False,
        give_up_on=(),
        circuit_breaker=CircuitBreakerSettings(enabled=False),
        is_async=False,
        hidden_variables=(),
        **options,
    )
