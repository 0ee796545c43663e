"""The settings of HTTP: the keys below `webhooks`, which receivers are sent which events and which addresses may be
called, and those below `server`, the REST server (`fileq serve`).
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated, ClassVar, Literal

from fileq.config.section import AtLeastOne, Section
from fileq.config.value_types import (
    ChoiceKind,
    Filled,
    FilledUtf8,
    Glob,
    JobType,
    Port,
    RateKind,
    SecretKind,
    SizeKind,
    TextKind,
    ValueKind,
)
from fileq.core.api_key import FEWEST_CHARACTERS
from fileq.core.units import Rate
from fileq.core.webhook import (
    NAME_RULE,
    WEBHOOK_EVENTS,
    WEBHOOKS_MAX,
    InvalidUrl,
    Webhook,
    WebhookFilter,
    parse_target,
    secret_key,
    shown_url,
    url_problem,
)


class NetworkKind(ValueKind, frozen=True):
    """A network of IP addresses."""

    expects = "a network such as 10.1.0.0/16 or fd00::/8"

    def read(self, text: str) -> str:
        from ipaddress import ip_network  # needed here only, and commands should start fast

        try:
            return str(ip_network(text.strip()))
        except ValueError as error:
            raise ValueError(f"{self.expects} ({error})") from None


class WebhookUrlKind(ValueKind, frozen=True):
    """The URL of a receiver. Its path and query may hold a token, so only its host is shown."""

    expects = "a URL such as https://example.org/hook"

    def read(self, text: str) -> str:
        try:
            parse_target(text)
        except InvalidUrl as error:
            raise ValueError(f"{self.expects}; it {error}") from None
        return text

    def mask(self, text: str) -> str:
        return shown_url(text)

    def mask_invalid(self, text: str) -> str:
        return "***"


WEBHOOK_SECRET = SecretKind(
    expects="whsec_ and 24 to 64 bytes in base64; `openssl rand -base64 32` generates them",
    is_accepted=lambda text: secret_key(text) is not None,
)


class WebhookFilterSettings(Section, frozen=True):
    is_sparse: ClassVar[bool] = True

    type: Annotated[JobType | None, "type of the jobs"] = None
    match: Annotated[Glob | None, "glob of the files, as in a route"] = None
    priority: Annotated[str | None, "queue of the jobs"] = None
    batch: Annotated[str | None, "batch of the jobs"] = None


class EndpointSettings(Section, frozen=True):
    is_sparse: ClassVar[bool] = True

    name: Annotated[str, TextKind(NAME_RULE, f"a name that matches {NAME_RULE}"), "name of the webhook"] = ""
    url: Annotated[str, WebhookUrlKind(), "where to send"] = ""
    events: Annotated[tuple[Annotated[str, ChoiceKind(WEBHOOK_EVENTS)], ...], AtLeastOne, "events to send"] = ()
    filter: Annotated[WebhookFilterSettings, "which jobs: type, match, priority, batch"] = WebhookFilterSettings()
    secret: Annotated[str, WEBHOOK_SECRET, "signs the deliveries; prefer secret_file"] = ""
    secret_file: Annotated[str, "file with the secret; during a rotation a second line holds the old one"] = ""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        for name in ("name", "url", "events"):
            if not getattr(self, name):
                yield "", f"has no {name}; give one"
        yield from self.exactly_one("secret", "secret_file")

    @property
    def webhook(self) -> Webhook:
        given = self.filter
        conditions = WebhookFilter(given.type or "", given.match or "", given.priority or "", given.batch or "")
        return Webhook(self.name, self.url, self.events, conditions)


class WebhookSettings(Section, frozen=True):
    allow_http: Annotated[bool, "also send to http:// URLs, unencrypted"] = False
    allow_networks: Annotated[
        tuple[Annotated[str, NetworkKind()], ...], "private networks that webhooks may send to, such as 10.1.0.0/16"
    ] = ()
    allow_ports: Annotated[tuple[Port, ...], "ports to send to besides 443, 8443 and 80"] = ()
    endpoints: Annotated[
        tuple[EndpointSettings, ...],
        "each with name, url, events, filter {type, match, priority, batch}, and secret or secret_file",
    ] = ()

    def contradictions(self) -> Iterator[tuple[str, str]]:
        names = [endpoint.name for endpoint in self.endpoints]
        if len(names) > WEBHOOKS_MAX:
            yield "endpoints", f"has {len(names)} webhooks; at most {WEBHOOKS_MAX} are allowed"
        for index, endpoint in enumerate(self.endpoints):
            if endpoint.name in names[:index]:
                yield "endpoints", f"has two webhooks named {endpoint.name!r}; each needs a name of its own"
            if problem := url_problem(endpoint.url, allow_http=self.allow_http, allow_ports=self.allow_ports):
                yield "endpoints", f"has {endpoint.name!r}, whose url {problem}"


# the REST server

HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]*"
GUESSABLE = "is the same as server.username, which is the first guess; choose another password"


def is_guessable(username: str, password: str) -> bool:
    """Whether they are a pair such as admin and admin."""
    return bool(password) and username.casefold() == password.casefold()


def host_here(bind: str) -> str:
    """The address by which this machine reaches a server that listens on this one."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)


def url_here(bind: str, port: int) -> str:
    host = host_here(bind)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(bind: str) -> bool:
    """Whether only programs of this machine reach this address."""
    if bind == "localhost":
        return True
    try:
        return ip_address(bind).is_loopback
    except ValueError:
        return False


# The origin of web pages of another site, exactly as browsers send it.
ORIGIN = TextKind(
    r"https?://[a-z0-9.-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?",
    "an origin such as https://example.org, without a path; * is not accepted",
)
OUTSIDE_KEY = f"a key of at least {FEWEST_CHARACTERS} printable characters without spaces"


def is_outside_key(text: str) -> bool:
    """Whether a text is accepted as the key from outside, in `api_key` or in the file."""
    return len(text) >= FEWEST_CHARACTERS and text.isascii() and text.isprintable() and " " not in text


API_KEY = SecretKind(expects=OUTSIDE_KEY, is_accepted=is_outside_key)


class ServerSettings(Section, frozen=True):
    bind: Annotated[FilledUtf8, "address to listen on; without a key it must be loopback"] = "127.0.0.1"
    port: Annotated[Port, "port of the REST API; 0 = any free port"] = 8080
    base_path: Annotated[
        str,
        TextKind(r"(/[A-Za-z0-9._~-]+)*", "a path such as /fileq, without a trailing slash"),
        'path under which a proxy serves it, such as /fileq; "" = the root',
    ] = ""
    hosts: Annotated[tuple[Filled, ...], "accepted Host headers, besides localhost and the bind address"] = ()
    api_key: Annotated[str, API_KEY, "an admin key of your own; prefer api_key_file, or API_KEY"] = ""
    api_key_file: Annotated[str, "file that holds the key, instead of api_key; a change needs no restart"] = ""
    console: Annotated[bool, "serve the web pages"] = True
    username: Annotated[str, "user name of HTTP Basic, together with password_file"] = ""
    password: Annotated[str, SecretKind(), "password of HTTP Basic; prefer password_file"] = ""
    password_file: Annotated[str, "file that holds the password, instead of password; a change needs no restart"] = ""
    auth_header: Annotated[
        str,
        TextKind(HEADER_NAME, "the name of a header such as X-Forwarded-User"),
        "header with the user name from an SSO proxy; only accepted from trusted_proxies",
    ] = ""
    trusted_proxies: Annotated[
        tuple[Annotated[str, NetworkKind()], ...], "addresses of proxies whose forwarded headers are trusted"
    ] = ()
    cors_origins: Annotated[
        tuple[Annotated[str, ORIGIN], ...], "exact origins whose pages may call the API; * is refused"
    ] = ()
    rate_limit: Annotated[Rate, RateKind(), "requests per key; short bursts may be twice as many"] = Rate(50, 1000)
    files: Annotated[
        Literal["none", "names", "preview", "download"], "what is shown of files: none, names, preview or download"
    ] = "names"
    upload_dir: Annotated[str, 'directory for uploads; "" = no uploads'] = ""
    max_upload: Annotated[int | None, SizeKind(), 'largest upload; "" = no limit'] = 1 << 30
    read_only: Annotated[bool, "accept only GET, whatever the key"] = False

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.api_key and self.api_key_file:
            yield "api_key_file", "is set, and api_key too; keep one"
        if self.password and self.password_file:
            yield "password_file", "is set, and password too; keep one"
        if bool(self.username) != bool(self.password or self.password_file):
            yield "", "has only one of username and password_file; set both or none"
        if is_guessable(self.username, self.password):
            yield "password", GUESSABLE
        if self.auth_header and not self.trusted_proxies:
            yield "auth_header", "is set without trusted_proxies; any client could send it"
