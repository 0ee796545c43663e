"""Who sends a request, and what that caller may do."""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec import Struct

from fileq.core.api_key import Scope, StoredKey, effective_scopes
from fileq.server.problems import ApiProblem

KEY, SESSION, BASIC, PROXY = "key", "session", "basic", "proxy"


class Caller(Struct, frozen=True):
    """`id` is the id of a key, or `user:NAME`; `how` says how the request proved it. `scopes` are complete."""

    id: str
    name: str
    how: str
    scopes: frozenset[Scope]
    allowed_types: tuple[str, ...] = ()
    path_prefix: str = ""
    expires_ms: int = 0
    is_login: bool = False  # by the one-time link, so that it can't log in again
    is_named: bool = False  # the person of such a session has said a name

    @property
    def is_browser(self) -> bool:
        """Whether a browser adds the credentials by itself, so that another site could use them."""
        return self.how != KEY

    def require(self, scopes: Iterable[Scope]) -> None:
        """Raises ApiProblem unless the caller has one of the scopes."""
        wanted = tuple(scopes)
        if wanted and self.scopes.isdisjoint(wanted):
            raise ApiProblem("forbidden", f"this needs the scope {' or '.join(wanted)}; {self.name!r} does not have it")

    def check_type(self, type: str) -> None:
        """Raises ApiProblem for a type of job that the key may not enqueue."""
        if self.allowed_types and type not in self.allowed_types:
            names = ", ".join(self.allowed_types)
            raise ApiProblem("not-allowed", f"key {self.name!r} may enqueue jobs of the types {names}, not {type!r}")

    def check_path(self, path: str) -> None:
        """Raises ApiProblem for a file that the key may not enqueue. Links are resolved: the file itself counts."""
        if self.allowed_types and not self.path_prefix:
            raise ApiProblem("not-allowed", f"key {self.name!r} may enqueue jobs of certain types only, not files")
        if not self.path_prefix:
            return
        real, prefix = os.path.realpath(path), os.path.realpath(self.path_prefix)
        if not real.startswith(prefix.rstrip("/") + "/"):
            raise ApiProblem("not-allowed", f"key {self.name!r} may enqueue files below {self.path_prefix} only")


def caller_of_key(id: str, key: StoredKey, how: str = KEY) -> Caller:
    scopes = effective_scopes(key.scopes)
    limits = key.allowed_types, key.path_prefix, key.expires_ms
    return Caller(id, key.name, how, scopes, *limits, is_login=key.is_login, is_named=key.is_named)


def admin(id: str, name: str, how: str) -> Caller:
    return Caller(id, name, how, effective_scopes([Scope.ADMIN]))
