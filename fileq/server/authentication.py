"""Who sends a request: a key, the key from outside, a session, HTTP Basic, or a user named by a trusted proxy; and what
that caller may do, see and change.

Keys are read from the broker at most once in CACHE_S, so a revoked key is refused within 5 s. Sessions and the
one-time link are here, too, and what refuses requests that another site made a browser send.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.datastructures import Headers

from fileq.brokers.catalog import Catalog
from fileq.commands.api_keys import SESSION_MS, EndedSessions, KeyOptions, KeyStore
from fileq.config.http_settings import ServerSettings, is_outside_key
from fileq.config.sources import PasswordFile
from fileq.core.api_key import Restriction, Scope, StoredKey, digest, effective_scopes, has_parent_parts, id_in_key
from fileq.core.errors import BrokerError, Conflict
from fileq.core.job import MADE_BY_TAG, Job
from fileq.core.units import Rate
from fileq.server.limits import BrokerPool, Proxies, RateLimiter, client_network, ignore, parsed, shown
from fileq.server.problems import ApiProblem, broker_away, invalid_at

T = TypeVar("T")
CACHE_S = 3.0
USE_EVERY_MS = 60_000
NOTE_S = 0.1
KEYS_S = 0.2  # how long a view waits for the keys
AGAIN_S = 1.0
OLD_S = 900.0
_WITH_PORT = re.compile(r"\[([^\]]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")  # as some proxies forward an address
OUTSIDE = "outside"  # the id of the key from outside


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

    @property
    def is_admin(self) -> bool:
        return Scope.ADMIN in self.scopes

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

    @property
    def changes_all_batches(self) -> bool:
        """Whether the caller may add to batches that another one made, and seal them."""
        return Scope.OPERATE in self.scopes and not self.restriction


def caller_of_key(id: str, key: StoredKey, how: str) -> Caller:
    scopes = effective_scopes(key.scopes)
    return Caller(id, key.name, how, scopes, key.restriction, key.expires_ms, key.is_login, key.is_named)


def admin(id: str, name: str, how: str) -> Caller:
    return Caller(id, name, how, effective_scopes([Scope.ADMIN]))


class RequestSender(Struct, frozen=True):
    """Where a request comes from: the address of the client, as a trusted proxy names it, otherwise of the peer; and
    scheme and host as the client knows them."""

    address: str
    scheme: str
    host: str
    is_proxy: bool

    @property
    def origin(self) -> str:
        """Of pages of this server."""
        return f"{self.scheme}://{self.host}"


OF_ADDRESS, OF_ALL = Rate(10, 60_000), Rate(100, 60_000)  # logins that may fail
FIRST_REPORT_S, NEXT_REPORT_S = 1.0, 600.0
_ADDRESSES_COUNTED = 1_000


class FailedLogins:
    """Limits how often a wrong password or link can be tried, and reports all failures: once for all that come
    together, however many, so that an attacker fills no log. Belongs to the event loop.

    Keys are too long to be guessed, so wrong ones are only reported: if they counted, a stranger's wrong keys would
    lock out those who know the password.

    `report` gets how many failed, from how many addresses, the last address, and how it tried. `call_later` is that of
    the event loop."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
        report: Callable[[int, int, str, str], None],
    ) -> None:
        self._by_address = RateLimiter(OF_ADDRESS, monotonic)
        self._all = RateLimiter(OF_ALL, monotonic)
        self._monotonic = monotonic
        self._call_later = call_later
        self._report = report
        self._count = 0
        self._addresses: set[str] = set()
        self._last = ("", "")
        self._is_awaited = False
        self._reported_s = float("-inf")

    def check(self, address: str, *, is_password: bool = False) -> None:
        """Raises ApiProblem while too many logins have failed from the address. A password, which a person chose, also
        waits for the failures of all addresses together: an attacker may have many."""
        wait_s = max(self._by_address.wait_s(client_network(address)), self._all.wait_s("") if is_password else 0)
        if wait_s:
            detail = f"too many logins have failed; try again in {wait_s} s"
            raise ApiProblem("rate-limited", detail, retry_after_s=wait_s)

    def failed(self, address: str, how: str) -> None:
        """`how` is KEY, BASIC, or "link"."""
        if how != KEY:
            self._by_address.spend(client_network(address))
        if how == BASIC:
            self._all.spend("")
        if len(self._addresses) < _ADDRESSES_COUNTED:
            self._addresses.add(address)
        self._count, self._last = self._count + 1, (address, how)
        if not self._is_awaited:
            self._is_awaited = True
            next_s = self._reported_s + NEXT_REPORT_S - self._monotonic()
            self._call_later(max(FIRST_REPORT_S, next_s), self.flush)

    def flush(self) -> None:
        """Reports what has not been reported."""
        self._is_awaited = False
        if self._count:
            count, self._count = self._count, 0
            addresses, self._addresses = len(self._addresses), set()
            self._reported_s = self._monotonic()
            self._report(count, addresses, *self._last)


class Authentication:
    """Belongs to the event loop."""

    def __init__(
        self,
        settings: ServerSettings,
        keys: KeyStore,
        pool: BrokerPool,
        sessions: Sessions,
        failures: FailedLogins,
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._pool = pool
        self._sessions = sessions
        self._now_ms = now_ms
        self._failures = failures
        self._cached: dict[str, StoredKey] = {}
        self._ended: dict[str, EndedSessions] = {}
        self._read_s = self._failed_s = float("-inf")
        self._reading: asyncio.Future[bool] | None = None
        self.is_away = False  # whether the last reading of the keys failed
        self._noted_ms: dict[str, int] = {}
        self._notes: set[asyncio.Future[None]] = set()
        self._proxies = Proxies(settings.trusted_proxies)
        self._outside = PasswordFile(settings.api_key_file, settings.api_key) if settings.api_key_file else None
        self._password = PasswordFile(settings.password_file, "") if settings.password_file else None
        self._has_basic = bool(settings.password or settings.password_file)

    def sender(self, address: str, scheme: str, headers: Headers) -> RequestSender:
        """Forwarded headers count only if they come from a trusted proxy."""
        is_proxy = address in self._proxies
        if is_proxy and (given := headers.get("x-forwarded-proto", "").strip().lower()) in ("http", "https"):
            scheme = given
        client = self._forwarded(address, headers.getlist("x-forwarded-for")) if is_proxy else shown(address)
        return RequestSender(client, scheme, headers.get("host", ""), is_proxy)

    def _forwarded(self, peer: str, names: Sequence[str]) -> str:
        """The last address that is no trusted proxy: those before it are what the client claims. It may have a port."""
        for name in reversed(",".join(names).split(",")[-10:]):
            text = name.strip()
            with_port = _WITH_PORT.fullmatch(text)
            address = parsed((with_port[1] or with_port[2]) if with_port is not None else text)
            if address is None:
                break
            if str(address) not in self._proxies:
                return str(address)
        return shown(peer)

    async def caller(
        self, headers: Headers, cookies: Mapping[str, str], sender: RequestSender, *, bears_outage: bool = False
    ) -> Caller:
        """Raises ApiProblem if the request has no valid credentials. Those that are given explicitly count first.

        `bears_outage`: while the broker does not answer, a session whose key was known within OLD_S is accepted. For
        views, which then show only what they showed before."""
        authorization = headers.get("authorization", "")
        kind, _, value = authorization.partition(" ")
        given = headers.get("x-api-key") or (value.strip() if kind.lower() == "bearer" else "")
        if given:
            return await self._of_key(given, sender)
        if kind.lower() == "basic" and self._has_basic:
            return self._of_basic(value.strip(), sender)
        if authorization:
            raise self._refused("Authorization must be Bearer and a key")
        if COOKIE in cookies:
            return await self._of_session(cookies[COOKIE], bears_outage=bears_outage)
        header = self._settings.auth_header
        names = headers.getlist(header) if header and sender.is_proxy else []
        if len(names) > 1:
            raise self._refused(f"{header} is given {len(names)} times; the proxy must remove what clients send")
        if names and (name := names[0].strip()):
            return admin(f"user:{name[:100]}", name[:100], PROXY)
        raise self._refused("send a key as X-API-Key, or as Authorization: Bearer; 'fileq keys create' creates one")

    async def login(self, key: str, sender: RequestSender) -> str:
        """The Set-Cookie header that begins a session for this key."""
        caller = await self._of_key(key, sender)
        return self._sessions.cookie(caller.id, sender, mark=self.mark_of(caller))

    async def login_by_link(self, token: str, sender: RequestSender) -> str:
        """Uses a one-time link: as login(), for a session whose subject is a new key. Raises ApiProblem for one that is
        not valid (any more), and what the broker raises."""
        self._failures.check(sender.address)
        maker = await self._pool.call(partial(self._keys.use_link, token))
        if maker is None:
            self._failures.failed(sender.address, "link")
            detail = (
                "the link was already used, or is older than 10 minutes; "
                "'fileq login-link' on the server prints a new one"
            )
            raise ApiProblem("unauthenticated", detail)
        id = await self._pool.call(partial(self._make_key, maker))
        self.forget_cached()
        return self._sessions.cookie(id, sender)

    def _make_key(self, maker: str) -> str:
        """Its text is thrown away: only the session uses the key. Its name stands below notes and in the audit."""
        name = self._keys.free_session_name(maker[:MAKER_LENGTH].strip())
        options = KeyOptions(name, (Scope.ADMIN,), self._now_ms() + SESSION_S * 1000, is_login=True)
        return self._keys.create(options).id

    async def end(self, session: Session) -> None:
        """Ends the session for good, also for a copy of its cookie. Other sessions of the key stay as they are."""
        await self._pool.call(lambda: self._keys.end_session(session.subject, session.id, session.expires_ms))
        self.forget_cached()

    def mark_of(self, caller: Caller) -> str:
        """What is_accepted() compares: it changes with the key from outside, or the password."""
        if caller.how == BASIC:
            return digest(self._expected_password())[:32]
        return self._mark() if caller.id == OUTSIDE else ""

    async def is_accepted(self, caller: Caller, mark: str) -> bool:
        """Whether a caller of an earlier request would still be let in. True during an outage of the broker."""
        if caller.how not in (KEY, SESSION):
            return hmac.compare_digest(mark, self.mark_of(caller))
        if caller.id == OUTSIDE and not (self._outside_key() and hmac.compare_digest(mark, self._mark())):
            return False
        try:
            key = await self._known(caller.id)
        except (ApiProblem, BrokerError):
            return True
        if caller.how == SESSION and self._has_ended(caller.id, *caller.session):
            return False
        return caller.id == OUTSIDE or (key is not None and not key.is_expired(self._now_ms()))

    async def _of_key(self, given: str, sender: RequestSender) -> Caller:
        """A key is compared however many logins have failed: one that fileq made has 256 random bits, the one from
        outside at least 20 characters."""
        outside = self._outside_key()
        if outside and hmac.compare_digest(given.encode(), outside.encode()):
            return admin(OUTSIDE, "server.api_key", KEY)
        id = id_in_key(given)
        key = (await self._known(id)) if id is not None else None
        if id is not None and key is not None and key.matches(given):
            return await self._accepted(id, key, KEY)
        self._failures.failed(sender.address, KEY)
        raise self._refused("the key is not known; it may have been revoked")

    async def _of_session(self, cookie: str, *, bears_outage: bool) -> Caller:
        session = self._sessions.read(cookie)
        if session is None:
            raise self._refused("the session has ended; log in again")
        is_outside = session.subject == OUTSIDE
        key = await (self._known_in_outage if bears_outage or is_outside else self._known)(session.subject)
        if self._has_ended(session.subject, session.id, session.begun_ms):
            raise self._refused("the session has ended; log in again")
        if is_outside:
            if not self._outside_key() or not hmac.compare_digest(session.mark, self._mark()):
                raise self._refused("the key of the session is no longer accepted")
            caller = admin(OUTSIDE, "server.api_key", SESSION)
        elif key is None:
            raise self._refused("the key of the session was revoked")
        elif self.is_away:
            caller = caller_of_key(session.subject, key, SESSION)
        else:
            caller = await self._accepted(session.subject, key, SESSION)
        return replace(caller, session=(session.id, session.begun_ms))

    def _has_ended(self, subject: str, session: str, begun_ms: int) -> bool:
        """As the broker said it last."""
        return subject in self._ended and self._ended[subject].has(session, begun_ms)

    async def _accepted(self, id: str, key: StoredKey, how: str) -> Caller:
        if key.is_expired(self._now_ms()):
            raise self._refused("the key has expired")
        if self._now_ms() - self._noted_ms.get(id, 0) >= USE_EVERY_MS:
            self._noted_ms[id] = self._now_ms()
            await self._begin_note(id)
        return caller_of_key(id, key, how)

    async def _begin_note(self, id: str) -> None:
        """Waits for a moment only: while the broker does not answer, the request needs the rest of its second."""
        task = asyncio.ensure_future(self._pool.call(partial(self._keys.note_use, id)))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)
        task.add_done_callback(ignore)  # the request itself reports an outage and a full pool
        await asyncio.wait({task}, timeout=NOTE_S)

    def _of_basic(self, value: str, sender: RequestSender) -> Caller:
        self._failures.check(sender.address, is_password=True)
        try:
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except ValueError:  # no base64, no ASCII, or no UTF-8 in it
            user, password = "", ""
        expected = self._expected_password()
        is_right = hmac.compare_digest(user.encode(), self._settings.username.encode())
        is_right &= bool(expected) and hmac.compare_digest(password.encode(), expected.encode())
        if not is_right:
            self._failures.failed(sender.address, BASIC)
            raise self._refused("the user name or the password is wrong")
        return admin(f"user:{user}", user, BASIC)

    def _expected_password(self) -> str:
        return self._password.current() if self._password is not None else self._settings.password

    async def _known(self, id: str, timeout_s: float | None = None) -> StoredKey | None:
        """All requests that come while the keys are being read wait for the same reading: strangers with wrong keys
        take one thread of the pool."""
        is_current = time.monotonic() - self._read_s < CACHE_S
        while not is_current:
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._read_keys())
                self._reading.add_done_callback(self._has_read)
            try:
                is_current = await asyncio.wait_for(asyncio.shield(self._reading), timeout_s)
            except TimeoutError:
                raise broker_away("the broker has not answered in time") from None
        return self._cached.get(id)

    async def _read_keys(self) -> bool:
        """False if forget_cached() was called meanwhile: what was read may be from before the change."""
        began_s, mine = time.monotonic(), asyncio.current_task()
        cached, ended = await self._pool.call(self._keys.load_with_ended)
        if self._reading is not mine:
            return False
        self._cached, self._ended, self._read_s = cached, ended, began_s
        self.is_away = False
        return True

    def _has_read(self, reading: asyncio.Future[bool]) -> None:
        if self._reading is reading:
            self._reading = None
        ignore(reading)  # those that wait for it report it

    async def _known_in_outage(self, id: str) -> StoredKey | None:
        """Tries the broker for a moment, and during an outage once in AGAIN_S only."""
        now_s = time.monotonic()
        if self.is_away and now_s - self._failed_s < AGAIN_S:
            return self._cached.get(id)
        try:
            return await self._known(id, timeout_s=KEYS_S)
        except (ApiProblem, BrokerError):
            if id != OUTSIDE and (id not in self._cached or now_s - self._read_s > OLD_S):
                raise
            self.is_away, self._failed_s = True, now_s
            return self._cached.get(id)

    def admin_keys(self) -> list[tuple[str, str]]:
        """Names and ids of keys with which a person can log in as an administrator, as the last request knew them."""
        known = self._cached.items()
        lasting = [(id, key) for id, key in known if not key.is_login and not key.is_expired(self._now_ms())]
        return [(key.name, id) for id, key in lasting if Scope.ADMIN in key.scopes]

    def forget_cached(self) -> None:
        """After a change of the keys by this server."""
        self._read_s = float("-inf")
        self._reading = None

    def _outside_key(self) -> str:
        """ "" while there is none: a file may have been given a key that can be guessed since the start."""
        key = self._outside.current() if self._outside is not None else self._settings.api_key
        return key if is_outside_key(key) else ""

    def _mark(self) -> str:
        return digest(self._outside_key())[:32]

    def _refused(self, detail: str) -> ApiProblem:
        challenge = 'Basic realm="fileq", Bearer' if self._has_basic else "Bearer"
        return ApiProblem("unauthenticated", detail, headers={"WWW-Authenticate": challenge})


# Sessions of browsers: a signed cookie that names a key or a user.
#
# A session has no permissions of its own. The key that it names is looked up on every request, so revoking the key ends
# it. Logging out ends it on the broker, so that a copy of its cookie is worth nothing.

COOKIE = "fileq_session"
SESSION_S = SESSION_MS // 1000
MAKER_LENGTH = 50  # so that the name of the session is one of a key
_PURPOSE = "session"


class Session(Struct, frozen=True):
    """`subject` is the id of a key. `mark` is part of the digest of the key from outside, if that is the subject. `id`
    is that of the session itself, which ends it for good when the person logs out."""

    subject: str
    expires_ms: int
    mark: str = ""
    id: str = ""

    @property
    def begun_ms(self) -> int:
        return self.expires_ms - SESSION_S * 1000


class Sessions:
    def __init__(self, signer: Signer, now_ms: Callable[[], int], cookie_path: str) -> None:
        self._signer = signer
        self._now_ms = now_ms
        self._cookie_path = cookie_path or "/"

    def cookie(self, subject: str, sender: RequestSender, *, mark: str = "") -> str:
        """The Set-Cookie header that begins a session."""
        session = Session(subject, self._now_ms() + SESSION_S * 1000, mark, secrets.token_hex(8))
        return self._header(self._signer.seal(_PURPOSE, session), SESSION_S, sender)

    def end_cookie(self, sender: RequestSender) -> str:
        return self._header("", 0, sender)

    def read(self, cookie: str) -> Session | None:
        session = self._signer.open(_PURPOSE, cookie, Session)
        return session if session is not None and session.expires_ms > self._now_ms() else None

    def _header(self, value: str, age_s: int, sender: RequestSender) -> str:
        secure = "; Secure" if sender.scheme == "https" else ""
        return f"{COOKIE}={value}; Path={self._cookie_path}; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"


# Refuses requests that another site made a browser send. Holds where a browser adds the credentials automatically.


def check_same_site(headers: Mapping[str, str], sender: RequestSender) -> None:
    """Raises ApiProblem unless the browser says that the request comes from a page of this server.

    Browsers send Sec-Fetch-Site; older ones, and all over plain http on other hosts than localhost, only Origin."""
    site = headers.get("sec-fetch-site")
    if site == "same-origin":
        return
    if site is not None:
        raise ApiProblem("cross-site", f"Sec-Fetch-Site is {site[:40]!r}; with a session it must be same-origin")
    origin = headers.get("origin")
    if origin is None:
        detail = "with a session, Sec-Fetch-Site or Origin is required; programs send a key instead"
        raise ApiProblem("cross-site", detail)
    if origin.lower() != sender.origin.lower():
        raise ApiProblem("cross-site", f"Origin is {origin[:100]!r}; with a session it must be {sender.origin}")


def check_not_cross_site(headers: Mapping[str, str]) -> None:
    """Raises ApiProblem if the browser says that another site, or another port of this host, caused a request that
    changes nothing, but costs something: a stream, or a check. `none` is an address that a person typed; over plain
    http a browser says nothing."""
    site = headers.get("sec-fetch-site", "none")
    if site not in ("same-origin", "none"):
        detail = f"Sec-Fetch-Site is {site[:40]!r}; open it from a page of this server, or send a key"
        raise ApiProblem("cross-site", detail)


# Texts that only this installation can have made: session cookies and cursors.
#
# The secret is a document of the catalog, so that all servers of a broker accept each other's texts and a restart ends
# no session. A program that can read the broker can make such texts; it can change every job as well.

KIND, NAME = "server", "signing-secret"
BROKER_HEADER = "X-Fileq-Broker"  # of /healthz


class Signer:
    """Signs values for a purpose; a text made for another purpose is not accepted."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def seal(self, purpose: str, value: Any) -> str:
        body = _text(msgspec.json.encode(value))
        return f"{body}.{self._signature(purpose, body)}"

    def open(self, purpose: str, text: str, type: type[T]) -> T | None:
        """The value; None for a text that was not made by seal() for this purpose."""
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(purpose, body).encode()):
            return None
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=type)
        except (msgspec.DecodeError, binascii.Error, ValueError):
            return None  # made by another version

    def cursor(self, place: str, value: Any) -> str | None:
        """An opaque cursor for the next page of a list; None at its end. `place` names the list and its filter."""
        return self.seal(f"cursor:{place}", value) if value else None

    def read_cursor(self, place: str, text: str | None, type: type[T]) -> T | None:
        """None without a cursor. Raises ApiProblem for one of another list or filter, or of none."""
        if not text:
            return None
        value = self.open(f"cursor:{place}", text, type)
        if value is None:
            raise invalid_at("?cursor", "cursor is not one of this list and filter; begin without it")
        return value

    def digest(self, purpose: str, text: str) -> bytes:
        """The same on all servers of a broker, and unknown to everyone else."""
        return hmac.digest(self._secret, f"{purpose}\n{text}".encode(errors="replace"), hashlib.sha256)

    @property
    def broker_mark(self) -> str:
        """Tells the brokers of servers apart, and reveals nothing about the secret: /healthz shows it to strangers."""
        return self.digest("broker", "").hex()[:32]

    def _signature(self, purpose: str, body: str) -> str:
        return _text(self.digest(purpose, body))


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def signer_of(catalog: Catalog) -> Signer:
    """Of several servers that start at once, one makes the secret."""
    document = catalog.documents(KIND).get(NAME)
    if document is None:
        try:
            made = secrets.token_hex(32).encode()
            catalog.put_document(KIND, NAME, made, expected=0)
            return Signer(made)
        except Conflict:
            document = catalog.documents(KIND)[NAME]
    return Signer(document.body)
