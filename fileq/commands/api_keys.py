"""The keys of the REST API, for `fileq keys …` and for the server: documents of the catalog, by the id of the key.

The text of a key is returned once, when it is made; only its hash is stored. When a key was last used is a document of
another kind, so that using one does not change the revision of the keys.

What a kill -9 leaves: each document is the old or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.catalog import Catalog, Table
from fileq.core.api_key import KEY_NAME_LENGTH, LATEST_MS, Scope, StoredKey, StoredTime, digest, new_key
from fileq.core.documented import means
from fileq.core.errors import ConfigError, Unknown
from fileq.core.job import stamp, wall_clock_ms
from fileq.core.text import did_you_mean
from fileq.queries.documents import Time

KEYS_MAX = 1000
ENDED_MAX = 100  # sessions of one key that are named one by one
TYPES_MAX = 100
LINK_MS = 600 * 1000  # how long a one-time link works
LINKS_MAX = 20
SESSION_MS = 12 * 3600 * 1000  # how long a session lasts at most
SESSION_MARK = " (one-time link"  # the name of a session: the person, this, perhaps a number, and the bracket


class KeySummary(Struct, frozen=True):
    """A key as operators see it. Times are null for never."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    created: Time
    expires: Time
    last_used: Time
    allowed_types: Annotated[tuple[str, ...], means("the job types it is restricted to")] = ()
    path_prefix: Annotated[str, means("the directory it is restricted to; both empty: unrestricted")] = ""
    is_expired: Annotated[bool, means("it is no longer accepted")] = False
    is_login: Annotated[bool, means("belongs to a browser session started with a one-time link")] = False


class NewKey(Struct, frozen=True):
    id: Annotated[str, means("id of the key: the 8 characters after fq_")]
    name: Annotated[str, means("as given")]
    scopes: tuple[Scope, ...]
    expires: Time
    key: Annotated[str, means("the key; shown only once")]

    def __repr__(self) -> str:
        return f"NewKey({self.id!r}, {self.name!r})"


class KeyList(Struct, frozen=True):
    keys: tuple[KeySummary, ...]


class KeyUse(Struct, frozen=True):
    last_used_ms: StoredTime


class EndedSessions(Struct, frozen=True, omit_defaults=True):
    """The sessions of one key that a person has ended: by id, until when each would last. All that began until
    `before_ms` have ended too, so that the document never grows without end."""

    sessions: dict[str, int] = {}
    before_ms: int = 0

    def has(self, id: str, begun_ms: int) -> bool:
        return id in self.sessions or begun_ms <= self.before_ms


class StoredLink(Struct, frozen=True):
    """A one-time link that `fileq login-link` made, by the digest of its token. `maker` is whom the session is called
    after."""

    maker: str
    expires_ms: StoredTime


KEYS = Table[StoredKey]("api-keys", StoredKey)
KEY_USES = Table[KeyUse]("api-key-uses", KeyUse)
ENDED_SESSIONS = Table[EndedSessions]("ended-sessions", EndedSessions)
LOGIN_LINKS = Table[StoredLink]("login-links", StoredLink)


class KeyOptions(Struct, frozen=True):
    """What a new key is to be. `expires_ms` is a time; 0 for a key that does not expire."""

    name: str
    scopes: tuple[Scope, ...]
    expires_ms: int = 0
    allowed_types: tuple[str, ...] = ()
    path_prefix: str = ""
    is_login: bool = False


class KeyRevocation(Struct, frozen=True):
    """What became of a key that was to be revoked."""

    id: Annotated[str, means("of the key; the word that was given, if no key has it")]
    name: str
    result: Annotated[str, means("revoked, or unknown")]
    reason: Annotated[str, means("why it was not revoked")] = ""


class RevocationReport(Struct, frozen=True):
    count: Annotated[int, means("keys that were revoked")]
    results: Annotated[tuple[KeyRevocation, ...], means("each key that was named")]


class KeyStore:
    def __init__(self, catalog: Catalog, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._catalog = catalog
        self._now_ms = now_ms

    def load(self) -> dict[str, StoredKey]:
        """All keys by id, also those that have expired. A document that can't be read grants nothing."""
        return KEYS.all(self._catalog)

    def load_with_ended(self) -> tuple[dict[str, StoredKey], dict[str, EndedSessions]]:
        """As load(), and the sessions that have ended, both by the id of the key. One round trip."""
        keys, ended = self._catalog.documents_of([KEYS.kind, ENDED_SESSIONS.kind])
        return KEYS.read(keys), ENDED_SESSIONS.read(ended)

    def create(self, options: KeyOptions) -> NewKey:
        """Raises ConfigError, with everything that is wrong, for options that can't be used."""
        known, now_ms = self.load(), self._now_ms()
        if problems := [*_problems(options, now_ms)]:
            raise ConfigError(problems)
        if len(known) >= KEYS_MAX:
            raise ConfigError(f"there are {len(known)} keys; at most {KEYS_MAX} are allowed; revoke some")
        if any(one.name == options.name for one in known.values()):
            raise ConfigError(f"a key named {options.name!r} already exists; choose another name or revoke it")
        id, text = new_key()
        scopes = tuple(scope for scope in Scope if scope in options.scopes)
        what = (options.expires_ms, options.allowed_types, options.path_prefix, options.is_login)
        KEYS.put(self._catalog, id, StoredKey(options.name, digest(text), scopes, now_ms, *what), expected=0)
        return NewKey(id, options.name, scopes, stamp(options.expires_ms), text)

    def free_session_name(self, person: str) -> str:
        """`root (one-time link)`, with a number if another session has this name."""
        taken = {key.name for key in self.load().values()}
        numbers = ("", *(f" {count}" for count in range(2, len(taken) + 3)))
        return next(name for one in numbers if (name := f"{person or 'unnamed'}{SESSION_MARK}{one})") not in taken)

    def name_session(self, id: str, person: str) -> str:
        """Names the session after the person who says so. Returns the whole name, which still tells where the session
        came from. Raises ConfigError for a name that can't be used, or if the session has ended or is changed now."""
        documents = self._catalog.documents(KEYS.kind)
        key = KEYS.read(documents).get(id)
        if key is None:
            raise ConfigError("the session has ended")
        is_same = key.name.startswith(f"{person}{SESSION_MARK}")
        if is_same and key.is_named:
            return key.name
        name = key.name if is_same else self.free_session_name(person)
        named = replace(key, name=name, is_named=True)
        options = KeyOptions(named.name, key.scopes, key.expires_ms, is_login=True)
        if problems := [*_problems(options, self._now_ms())]:
            raise ConfigError(problems)
        KEYS.put(self._catalog, id, named, documents[id].revision)
        return named.name

    def summaries(self) -> KeyList:
        uses, now_ms = KEY_USES.all(self._catalog), self._now_ms()
        oldest_first = sorted(self.load().items(), key=lambda item: (item[1].created_ms, item[0]))
        return KeyList(tuple(_summary(id, key, uses.get(id, KeyUse(0)), now_ms) for id, key in oldest_first))

    def revoke(self, wanted: str) -> str:
        """By id or name. Returns the id; raises Unknown if there is no such key. Repeated, it raises."""
        known = self.load()
        id = wanted if wanted in known else next((id for id, key in known.items() if key.name == wanted), "")
        if not id or not KEYS.remove(self._catalog, id):
            names = [*known, *(key.name for key in known.values())]
            advice = did_you_mean(wanted, names, "'fileq keys list' lists them")
            raise Unknown(f"no key has the id or name {wanted!r}; {advice}")
        KEY_USES.remove(self._catalog, id)
        ENDED_SESSIONS.remove(self._catalog, id)
        return id

    def end_session(self, id: str, session: str, expires_ms: int) -> None:
        """Ends a session of this key, which would last until a time. The key of a one-time link is removed with it.
        What a kill -9 leaves: the session, or its end. Repeated, it changes nothing."""
        key = self.load().get(id)
        if key is not None and key.is_login:
            KEYS.remove(self._catalog, id)
            KEY_USES.remove(self._catalog, id)
            return

        def ended(known: EndedSessions | None) -> EndedSessions:
            now_ms, known = self._now_ms(), known or EndedSessions()
            lasting = {one: until_ms for one, until_ms in known.sessions.items() if until_ms > now_ms}
            sessions = {**lasting, session: expires_ms}
            return EndedSessions(sessions, known.before_ms) if len(sessions) <= ENDED_MAX else EndedSessions({}, now_ms)

        ENDED_SESSIONS.change(self._catalog, id, ended)

    def create_link(self, maker: str) -> str:
        """The token of a new one-time link, for any server of this broker. Only its digest is stored. Like create() it
        needs no key: a program that can write to the broker can make keys too."""
        self.remove_stale()
        if len(LOGIN_LINKS.all(self._catalog)) >= LINKS_MAX:
            raise ConfigError(f"there are {LINKS_MAX} unused links; use one of them, or wait until they expire")
        import secrets  # slow to import

        token = secrets.token_urlsafe(32)
        link = StoredLink(maker, self._now_ms() + LINK_MS)
        LOGIN_LINKS.put(self._catalog, digest(token), link, expected=0)
        return token

    def use_link(self, token: str) -> str | None:
        """The maker of the link, once; None for a token that is wrong, used or expired. Of several callers at the same
        time the one that removes the document gets it. What a kill -9 after that leaves: a link that is used up."""
        name = digest(token)
        link = LOGIN_LINKS.get(self._catalog, name)
        if link is None or link.expires_ms <= self._now_ms() or not LOGIN_LINKS.remove(self._catalog, name):
            return None
        return link.maker

    def note_use(self, id: str) -> None:
        """Remembers that a key was used now. A key that was revoked meanwhile leaves a use, which remove_stale ends."""
        KEY_USES.put(self._catalog, id, KeyUse(self._now_ms()))

    def remove_stale(self) -> None:
        """Removes sessions' keys and links that have expired, uses of keys that are gone, and ends of sessions that
        would have expired."""
        known, now_ms = self.load(), self._now_ms()
        for id, key in known.items():
            if key.is_login and key.is_expired(now_ms):
                KEYS.remove(self._catalog, id)
        for name, link in LOGIN_LINKS.all(self._catalog).items():
            if link.expires_ms <= now_ms:
                LOGIN_LINKS.remove(self._catalog, name)
        for id in self._catalog.documents(KEY_USES.kind):
            if id not in known:
                KEY_USES.remove(self._catalog, id)
        for id, ended in ENDED_SESSIONS.all(self._catalog).items():
            if max((*ended.sessions.values(), ended.before_ms + SESSION_MS), default=0) <= now_ms:
                ENDED_SESSIONS.remove(self._catalog, id)


def _summary(id: str, key: StoredKey, use: KeyUse, now_ms: int) -> KeySummary:
    times = (stamp(key.created_ms), stamp(key.expires_ms), stamp(use.last_used_ms))
    restriction = (key.allowed_types, key.path_prefix)
    return KeySummary(id, key.name, key.scopes, *times, *restriction, key.is_expired(now_ms), key.is_login)


def _problems(options: KeyOptions, now_ms: int) -> Sequence[str]:
    problems = []
    name = options.name
    if not (0 < len(name) <= KEY_NAME_LENGTH and name.isprintable() and name == name.strip()):
        problems.append(f"the name is {name!r:.120}; use 1 to {KEY_NAME_LENGTH} printable characters")
    if not options.scopes:
        problems.append(f"the key has no scope; choose one or more of {', '.join(Scope)}")
    if options.expires_ms > LATEST_MS:
        problems.append(
            "the expiry time is after the year 9999; choose an earlier one, or omit it for a key that never expires"
        )
    elif options.expires_ms and options.expires_ms <= now_ms:
        problems.append("the expiry time is in the past")
    if len(options.allowed_types) > TYPES_MAX:
        problems.append(f"{len(options.allowed_types)} types are too many; at most {TYPES_MAX} are allowed")
    prefix = options.path_prefix
    plain = "/" + os.path.normpath(prefix).strip("/")
    if prefix and (not prefix.startswith("/") or plain != (prefix.rstrip("/") or "/")):
        problems.append(f"the path prefix is {prefix!r:.200}; it must be an absolute path without . and ..")
    return problems
