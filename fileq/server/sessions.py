"""Sessions of browsers: a signed cookie that names a key or a user, and the one-time link that begins the first one.

A session holds no rights of its own. The key that it names is looked up on every request, so revoking the key ends it.
Logging out ends it on the broker, so that a copy of its cookie is worth nothing.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from fileq.commands.api_keys import LINK_MS, SESSION_MS, KeyOptions, KeyStore
from fileq.core.api_key import Scope
from fileq.server.broker_pool import BrokerPool
from fileq.server.problems import ApiProblem
from fileq.server.rate_limit import FailedLogins
from fileq.server.signing import Signer

COOKIE = "fileq_session"
SESSION_S = SESSION_MS // 1000
LINK_S = LINK_MS // 1000
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

    def cookie(self, subject: str, *, is_https: bool, mark: str = "") -> str:
        """The Set-Cookie header that begins a session."""
        session = Session(subject, self._now_ms() + SESSION_S * 1000, mark, secrets.token_hex(8))
        return self._header(self._signer.seal(_PURPOSE, session), SESSION_S, is_https=is_https)

    def end_cookie(self, *, is_https: bool) -> str:
        return self._header("", 0, is_https=is_https)

    def read(self, cookie: str) -> Session | None:
        session = self._signer.open(_PURPOSE, cookie, Session)
        return session if session is not None and session.expires_ms > self._now_ms() else None

    def _header(self, value: str, age_s: int, *, is_https: bool) -> str:
        secure = "; Secure" if is_https else ""
        return f"{COOKIE}={value}; Path={self._cookie_path}; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"


class LoginLink:
    """One link, for one use within LINK_S. Only its process knows it. `maker` is whom the session is called after."""

    def __init__(self, monotonic: Callable[[], float], maker: str = "") -> None:
        self.maker = maker
        self._token = secrets.token_urlsafe(32)
        self._monotonic = monotonic
        self._until_s = monotonic() + LINK_S

    @property
    def token(self) -> str:
        return self._token

    def use(self, token: str) -> bool:
        """True once, for the right token in time."""
        is_right = hmac.compare_digest(token.encode(), self._token.encode())
        if not is_right or not self._token or self._monotonic() > self._until_s:
            return False
        self._token = ""
        return True


class LinkLogin:
    """Begins sessions of one-time links, the one of the start and those of `fileq login-link`, and ends sessions.
    `forget_keys` is called after what is stored of them has
    changed."""

    def __init__(
        self,
        link: LoginLink | None,
        keys: KeyStore,
        pool: BrokerPool,
        failures: FailedLogins,
        now_ms: Callable[[], int],
        *,
        forget_keys: Callable[[], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._pool = pool
        self._failures = failures
        self._now_ms = now_ms
        self._forget_keys = forget_keys

    async def subject(self, token: str, address: str) -> str:
        """Uses the link: the id of a new key, which is the subject of the session. Raises ApiProblem for a token that
        is not valid (any more), and what the broker raises."""
        self._failures.check(address)
        link = self._link
        maker = link.maker if link is not None and link.use(token) else None
        if maker is None:
            maker = await self._pool.call(partial(self._keys.use_link, token))
        if maker is None:
            self._failures.failed(address, "link")
            detail = (
                "the link was used already, or is older than 10 minutes; "
                "'fileq login-link' on the machine of the server prints a new one"
            )
            raise ApiProblem("unauthenticated", detail)
        id = await self._pool.call(partial(self._make_key, maker))
        self._forget_keys()
        return id

    async def end(self, session: Session) -> None:
        """Ends the session for good, also for a copy of its cookie. Other sessions of the key stay as they are."""
        await self._pool.call(lambda: self._keys.end_session(session.subject, session.id, session.expires_ms))
        self._forget_keys()

    def _make_key(self, maker: str) -> str:
        """Its text is thrown away: only the session uses the key. Its name stands below notes and in the audit."""
        now_ms = self._now_ms()
        name = self._keys.free_session_name(maker[:MAKER_LENGTH].strip())
        options = KeyOptions(name, (Scope.ADMIN,), now_ms + SESSION_S * 1000, is_login=True)
        return self._keys.create(options).id
