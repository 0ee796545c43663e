"""The keys of the REST API: their form, their scopes, and what is stored of one. Does no I/O.

A key is `fq_<id>_<secret>`: 8 characters that name it and 43 that are secret. Only the SHA-256 of the whole key is
stored. The secret has 256 random bits, so a slow hash would protect nothing.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterable
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from fileq.core.job import Job

KEY_NAME_LENGTH = 100
LATEST_MS = 253_402_300_799_999  # the last moment of the year 9999: a later one can't be written as RFC 3339
FEWEST_CHARACTERS = 20  # of a key that comes from outside
_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_KEY = re.compile(r"fq_([a-z0-9]{8})_[A-Za-z0-9_-]{43}")


class Scope(enum.StrEnum):
    """What a key may do. `operate` includes `read`, and `admin` includes all."""

    READ = "read"
    ENQUEUE = "enqueue"
    OPERATE = "operate"
    FILES = "files"
    ADMIN = "admin"


_INCLUDED = {Scope.OPERATE: (Scope.READ,), Scope.ADMIN: tuple(Scope)}


def effective_scopes(scopes: Iterable[Scope]) -> frozenset[Scope]:
    return frozenset(included for scope in scopes for included in (scope, *_INCLUDED.get(scope, ())))


class Restriction(Struct, frozen=True, omit_defaults=True):
    """What a restricted key may touch: jobs of these types, and files below this directory. With neither it is no
    restriction. What it does not name is not allowed: with types only there are no files, with a directory only there
    are no types. Paths are compared by their names, without a look at the disk."""

    types: tuple[str, ...] = ()
    path_prefix: str = ""

    def __bool__(self) -> bool:
        return bool(self.types or self.path_prefix)

    def __str__(self) -> str:
        types = f"jobs of the types {', '.join(self.types)}" if self.types else ""
        files = f"files below {self.path_prefix}" if self.path_prefix else ""
        return " and ".join(one for one in (types, files) if one)

    def covers_type(self, type: str) -> bool:
        return not self or type in self.types

    def covers_path(self, path: bytes) -> bool:
        """A path with `..` in it is below nothing: where it leads depends on links."""
        if not self:
            return True
        top = os.fsencode(self.path_prefix).rstrip(b"/") + b"/"
        return bool(self.path_prefix) and path.startswith(top) and not has_parent_parts(path)

    def covers(self, job: Job | None) -> bool:
        """Whether a key with this restriction may see and change the job: its type, its file or both must be named.
        None stands for bytes that are not a job. A file that a worker moved counts where it came from."""
        if not self or job is None:
            return not self
        path = job.moved_from.encode(errors="surrogateescape") if job.moved_from is not None else job.path
        is_covered = (job.type is None or self.covers_type(job.type)) and (not path or self.covers_path(path))
        return is_covered and bool(job.type or path)


def has_parent_parts(path: bytes) -> bool:
    return b".." in path.split(b"/")


StoredTime: TypeAlias = Annotated[int, Meta(ge=0, le=LATEST_MS)]


class StoredKey(Struct, frozen=True, omit_defaults=True):
    """A key as the catalog holds it. Times are ms since the epoch; `expires_ms` is 0 for a key that does not expire.

    `allowed_types` and `path_prefix` are its restriction; with both empty it has none. `is_login` marks a key that only
    stands behind a session of the one-time link: its text was never given to a caller. `is_named`: the person of that
    session has said a name."""

    name: str
    sha256: str
    scopes: tuple[Scope, ...]
    created_ms: StoredTime
    expires_ms: StoredTime = 0
    allowed_types: tuple[str, ...] = ()
    path_prefix: str = ""
    is_login: bool = False
    is_named: bool = False

    def __repr__(self) -> str:
        return f"StoredKey({self.name!r})"

    @property
    def restriction(self) -> Restriction:
        return Restriction(self.allowed_types, self.path_prefix)

    def is_expired(self, now_ms: int) -> bool:
        return bool(self.expires_ms) and self.expires_ms <= now_ms

    def matches(self, key: str) -> bool:
        """Whether this is the key. Takes the same time for every wrong one."""
        import hmac

        return hmac.compare_digest(self.sha256, digest(key))


def new_key() -> tuple[str, str]:
    import secrets

    id = "".join(secrets.choice(_ID_LETTERS) for _ in range(8))
    return id, f"fq_{id}_{secrets.token_urlsafe(32)}"


def id_in_key(key: str) -> str | None:
    """The id that a key names; None for a text of another form."""
    found = _KEY.fullmatch(key)
    return found[1] if found is not None else None


def digest(key: str) -> str:
    import hashlib

    return hashlib.sha256(key.encode()).hexdigest()
