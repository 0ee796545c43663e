"""A webhook as a value: where it sends, which events it wants, and the rules for its name, URL and secret.

Pure: resolves no name and opens no connection. webhooks/sender.py checks addresses when a delivery is made.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

DELIVERY_TYPE = "fileq.webhook"
DELIVERY_ROUTE = -1  # the number of the route of deliveries; all others count from 0
DELIVERIES_MAX = 4  # that one worker makes at the same time, beside its `worker.count` jobs
TEST_EVENT = "webhook.test"
ANSWERED = "the receiver answered"  # how the error of an attempt begins, before the status
# Not job.started: a follow-up can only be part of a transition that settles or cancels a job.
WEBHOOK_EVENTS = ("job.completed", "job.failed", "job.dead", "job.cancelled", "job.recovered")
WEBHOOKS_MAX = 50  # each may add a job to every settlement
NAME_RULE = "[A-Za-z0-9._-]{1,100}"
SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
# Before each attempt but the first. All ten attempts take about three days.
RETRY_DELAYS_S = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
TIMEOUT_S = 20.0  # of one request, everything together
SECRETS_MAX = 2  # that sign a delivery: the current one and, for a day after a rotation, the one before
DEFAULT_PORTS: Mapping[str, int] = {"https": 443, "http": 80}
ALLOWED_PORTS = frozenset((443, 8443, 80))
URL_MAX = 2000
_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[^\s/?#\[\]:@]+)(?::(\d{1,5}))?(/[^\s#]*|\?[^\s#]*)?", re.IGNORECASE)


class WebhookFilter(Struct, frozen=True, omit_defaults=True):
    """Which jobs: all conditions that are given must hold. `match` is a glob as in a route."""

    type: str = ""
    match: str = ""
    priority: str = ""
    batch: str = ""

    def __str__(self) -> str:
        given = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} {value}" for name, value in given if value)


class Webhook(Struct, frozen=True):
    """One definition, without its secrets."""

    name: str
    url: str
    events: tuple[str, ...]
    filter: WebhookFilter = WebhookFilter()


class Target(NamedTuple):
    """The parts of a URL that a request needs."""

    scheme: str
    host: str  # without brackets, in ASCII
    port: int
    path: str

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


class InvalidUrl(ValueError):
    """The message says what is wrong and what to do. It does not contain the URL, which may hold a token."""


def parse_target(url: str) -> Target:
    """Raises InvalidUrl."""
    if len(url) > URL_MAX:
        raise InvalidUrl(f"has {len(url)} characters; at most {URL_MAX} are allowed")
    if not url.isascii() and "://" in url:
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        if not path.isascii():
            raise InvalidUrl("has characters that are not ASCII in its path; percent-encode them")
        try:
            url = f"{scheme}://{host.encode('idna').decode()}{slash}{path}"
        except UnicodeError:
            raise InvalidUrl("has a host name that can't be written in ASCII (IDNA)") from None
    found = _URL.fullmatch(url)
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise InvalidUrl("holds a user name or password; remove it: receivers verify the signature")
    if "://" in url and not url.lower().startswith(("http://", "https://")):
        raise InvalidUrl("must begin with http:// or https://")
    if found is None or not url.isprintable():
        raise InvalidUrl("is not a URL such as https://example.org/hook, without a fragment")
    scheme, host = found[1].lower(), found[2].strip("[]").lower()
    port = int(found[3]) if found[3] else DEFAULT_PORTS[scheme]
    if not 0 < port < 65536:
        raise InvalidUrl(f"has the port {port}; it must be from 1 to 65535")
    path = found[4] or "/"
    return Target(scheme, host, port, path if path.startswith("/") else f"/{path}")


def url_problem(url: str, *, allow_http: bool, allow_ports: Sequence[int]) -> str:
    """What is wrong with the URL of a webhook; "" if nothing is. Addresses are checked at each delivery."""
    try:
        target = parse_target(url)
    except InvalidUrl as error:
        return str(error)
    if target.scheme != "https" and not allow_http:
        return "is not https; use https, or set webhooks.allow_http: true"
    if target.port not in ALLOWED_PORTS and target.port not in allow_ports:
        known = ", ".join(map(str, sorted(ALLOWED_PORTS)))
        return f"has the port {target.port}; use one of {known}, or add it to webhooks.allow_ports"
    return ""


def shown_url(url: str) -> str:
    """Where the URL leads: its scheme, host and port. Its path and query often hold a token."""
    scheme, separator, rest = url.partition("://")
    shown = f"{scheme}{separator}{re.split('[/?#]', rest)[0]}"
    return shown if url.rstrip("/") == shown else f"{shown}/***"


def secret_key(secret: str) -> bytes | None:
    """The key in a secret; None if it is not `whsec_` and base64 of 24 to 64 bytes, as Standard Webhooks requires."""
    if not secret.startswith(SECRET_PREFIX):
        return None
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        return None
    return key if 24 <= len(key) <= 64 else None


def new_secret() -> str:
    import secrets

    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signature_header(keys: Sequence[bytes], id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each key."""
    import hashlib
    import hmac

    signed = f"{id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
