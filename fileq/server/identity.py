"""Who sends a request, and what that caller may do, see and change: every rule about it is here."""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec import Struct

from fileq.core.api_key import Restriction, Scope, StoredKey, effective_scopes, has_parent_parts
from fileq.core.job import MADE_BY_TAG, Job
from fileq.server.problems import ApiProblem

KEY, SESSION, BASIC, PROXY = "key", "session", "basic", "proxy"
UNRESTRICTED = Restriction()


class Caller(Struct, frozen=True):
    """`id` is the id of a key, or `user:NAME`; `how` says how the request proved it. `scopes` are complete.

    A caller is limited if its key has a restriction, or lacks the scope `read`. It sees only the jobs that its
    restriction names and, without `read`, only those that it made itself."""

    id: str
    name: str
    how: str
    scopes: frozenset[Scope]
    restriction: Restriction = UNRESTRICTED
    expires_ms: int = 0
    is_login: bool = False  # by the one-time link, so that it can't log in again
    is_named: bool = False  # the person of such a session has said a name
    session: tuple[str, int] = ("", 0)  # its id, and when it began

    @property
    def is_browser(self) -> bool:
        """Whether a browser adds the credentials automatically, so that another site could use them."""
        return self.how != KEY

    @property
    def is_limited(self) -> bool:
        return bool(self.restriction) or Scope.READ not in self.scopes

    def require(self, scopes: Iterable[Scope], *, serves_limited: bool = False) -> None:
        """Raises ApiProblem unless the caller has one of the scopes. What does not say that it shows and changes only
        what the caller may see (`serves_limited`) is refused to callers that are limited."""
        wanted = tuple(scopes)
        if wanted and self.scopes.isdisjoint(wanted):
            raise ApiProblem("forbidden", f"this needs the scope {' or '.join(wanted)}; {self.name!r} does not have it")
        if self.is_limited and not serves_limited:
            limit = f"is for {self.restriction} only" if self.restriction else "does not have the scope read"
            raise ApiProblem("not-allowed", f"key {self.name!r} {limit}, and this is about more")

    def check_type(self, type: str) -> None:
        """Raises ApiProblem for a type of job that the key may not enqueue."""
        if not self.restriction.covers_type(type):
            raise ApiProblem("not-allowed", f"key {self.name!r} is for {self.restriction} only, not for type {type!r}")

    def check_path(self, path: str) -> None:
        """Raises ApiProblem for a file that the key may not enqueue, upload or read. The path is compared as it will be
        stored, and as it is with all links resolved: both must be below the directory of the key."""
        if not self.restriction:
            return
        prefix, absolute = self.restriction.path_prefix, os.path.abspath(path)
        is_below = not has_parent_parts(os.fsencode(path)) and self.restriction.covers_path(os.fsencode(absolute))
        real = Restriction(path_prefix=os.path.realpath(prefix)) if prefix else self.restriction
        if not is_below or not real.covers_path(os.fsencode(os.path.realpath(path))):
            raise ApiProblem("not-allowed", f"key {self.name!r} is for {self.restriction} only, not for this file")

    def sees(self, job: Job | None) -> bool:
        """Whether the caller may know and, with the scope for it, change the job. None is what can't be read as a
        job."""
        if not self.is_limited:
            return True
        is_own = job is not None and job.tag_values.get(MADE_BY_TAG) == self.id
        return self.restriction.covers(job) and (Scope.READ in self.scopes or is_own)

    @property
    def own_tags(self) -> dict[str, str]:
        """What a job that this caller enqueues has beside its tags."""
        return {MADE_BY_TAG: self.id} if self.is_limited else {}

    def sees_batch(self, made_by: str) -> bool:
        """`made_by` is what the batch says. A batch may have members of any kind: a limited caller sees its own."""
        return made_by == self.id or not self.is_limited

    @property
    def changes_all_batches(self) -> bool:
        return Scope.OPERATE in self.scopes and not self.restriction

    def changes_batch(self, made_by: str) -> bool:
        """Whether the caller may add to the batch, and seal it. That of another caller takes the scope operate."""
        return made_by == self.id or self.changes_all_batches


def caller_of_key(id: str, key: StoredKey, how: str = KEY) -> Caller:
    scopes = effective_scopes(key.scopes)
    return Caller(
        id, key.name, how, scopes, key.restriction, key.expires_ms, is_login=key.is_login, is_named=key.is_named
    )


def admin(id: str, name: str, how: str) -> Caller:
    return Caller(id, name, how, effective_scopes([Scope.ADMIN]))
