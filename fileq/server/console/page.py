"""A row of the table of pages, and what the function of a page gets.

A page only reads. It asks the functions of API endpoints and shows what they return; every action on it is a request
to the API, so that scopes, other sites, the audit and read-only servers are checked in one place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fileq.core.api_key import Scope
from fileq.server.hidden_paths import without_paths
from fileq.server.identity import Caller
from fileq.server.route import ApiAnswer, ApiRequest, NoQuery
from fileq.server.services import Services

T = TypeVar("T")
NO_QUERY = NoQuery()


class PageRequest(Struct, frozen=True):
    """One page that may be shown: `query` is decoded and valid. `theme` is dark, light, or "" for the system's.
    `origin` is scheme and host of this server, as the browser knows them."""

    caller: Caller
    params: Mapping[str, str]
    query: Any
    services: Services
    request_id: str
    theme: str = ""
    origin: str = ""

    def ask(
        self,
        function: Callable[[ApiRequest[Any, Any]], T],
        query: Struct = NO_QUERY,
        *,
        body: Struct | UnsetType = UNSET,
        **params: str,
    ) -> T:
        """What the endpoint of the API returns for this caller. Raises ApiProblem."""
        made: ApiRequest[Any, Any] = ApiRequest(
            self.caller, params, query, body, self.services, self.request_id, headers={}
        )
        answer = function(made)
        return self.shown(answer.content if isinstance(answer, ApiAnswer) else answer)  # type: ignore[return-value]

    def shown(self, answer: T) -> T:
        """The answer as the API sends it: without paths if this server hides them."""
        if not self.services.hides_paths:
            return answer
        return msgspec.convert(without_paths(msgspec.to_builtins(answer)), type(answer))

    def has(self, scope: Scope) -> bool:
        """Whether the caller may use what needs this scope, on this server."""
        return scope in self.caller.scopes and (scope is Scope.READ or not self.services.config.server.read_only)


class ConsolePage(Struct, frozen=True, dict=True):
    """`path` is below /dashboard and may have parameters in braces. The function runs in a thread of the pool and
    returns the values of the template. `letter` is the key after `g` that opens the page; pages with a letter are in
    the navigation. `changes_with` are the events after which the page shows something else; `*` is any. `timeout_s` is
    for a page that takes longer than others, such as a check of the whole broker. `serves_limited` is that of a
    route."""

    path: str
    name: str
    title: str
    template: str
    function: Callable[[PageRequest], Mapping[str, Any]]
    query: type[Struct] = NoQuery
    scopes: tuple[Scope, ...] = (Scope.READ,)
    is_scan: bool = False
    letter: str = ""
    changes_with: str = "job.*"
    timeout_s: float | None = None  # None: the pool's own
    serves_limited: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile("/dashboard" + re.sub(r"\{(\w+)\}", r"(?P<\1>.+)", self.path), re.DOTALL)
