"""The keys of the REST API: their form, their scopes, and what is stored of one. Does no I/O.

A key is `fq_<id>_<secret>`: 8 characters that name it and 43 that are secret. Only the SHA-256 of the whole key is
stored. The secret has 256 random bits, so a slow hash would protect nothing.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

from msgspec import Struct

KEY_NAME_LENGTH = 100
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
    """The scopes with those that they include."""
    return frozenset(included for scope in scopes for included in (scope, *_INCLUDED.get(scope, ())))


class StoredKey(Struct, frozen=True, omit_defaults=True):
    """A key as the catalog holds it. Times are ms since the epoch; `expires_ms` is 0 for a key that does not expire.

    `allowed_types` and `path_prefix` limit what it enqueues; empty is no limit. `is_login` marks a key that only
    stands behind a session of the one-time link: its text was never given to a caller. `is_named`: the person of that
    session has said a name."""

    name: str
    sha256: str
    scopes: tuple[Scope, ...]
    created_ms: int
    expires_ms: int = 0
    allowed_types: tuple[str, ...] = ()
    path_prefix: str = ""
    is_login: bool = False
    is_named: bool = False

    def __repr__(self) -> str:
        return f"StoredKey({self.name!r})"

    def is_expired(self, now_ms: int) -> bool:
        return bool(self.expires_ms) and self.expires_ms <= now_ms

    def matches(self, key: str) -> bool:
        """Whether this is the key. Takes the same time for every wrong one."""
        import hmac

        return hmac.compare_digest(self.sha256, digest(key))


def new_key() -> tuple[str, str]:
    """The id and the text of a new key."""
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
