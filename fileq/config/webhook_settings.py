"""The keys below `webhooks`: which receivers are sent which events, and which addresses may be called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from fileq.config.kinds import InvalidValue, SecretKind, TextKind, ValueKind
from fileq.config.section import AtLeastOne, Section
from fileq.config.value_types import Glob, JobType, Port
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
            raise InvalidValue(f"{self.expects} ({error})") from None


class WebhookUrlKind(ValueKind, frozen=True):
    """The URL of a receiver. Its path and query may hold a token, so only its host is shown."""

    expects = "a URL such as https://example.org/hook"

    def read(self, text: str) -> str:
        try:
            parse_target(text)
        except InvalidUrl as error:
            raise InvalidValue(f"{self.expects}; it {error}") from None
        return text

    def mask(self, text: str) -> str:
        return shown_url(text)

    def mask_invalid(self, text: str) -> str:
        return "***"


class WebhookSecretKind(SecretKind, frozen=True):
    description: str = "whsec_ and 24 to 64 bytes in base64; `openssl rand -base64 32` makes such bytes"

    def read(self, text: str) -> str:
        if text and secret_key(text) is None:
            raise InvalidValue(self.expects)
        return text


class WebhookEventKind(ValueKind, frozen=True):
    expects = f"one of {', '.join(WEBHOOK_EVENTS)}"

    def read(self, text: str) -> str:
        if text not in WEBHOOK_EVENTS:
            raise InvalidValue(self.expects)
        return text


class WebhookFilterSettings(Section, frozen=True):
    is_sparse: ClassVar[bool] = True

    type: Annotated[JobType | None, "type of the jobs"] = None
    match: Annotated[Glob | None, "glob of the files, as in a route"] = None
    priority: Annotated[str | None, "queue of the jobs"] = None
    batch: Annotated[str | None, "batch of the jobs"] = None


class EndpointSettings(Section, frozen=True):
    """One webhook of the configuration."""

    is_sparse: ClassVar[bool] = True

    name: Annotated[str, TextKind(NAME_RULE, f"a name that matches {NAME_RULE}"), "name of the webhook"] = ""
    url: Annotated[str, WebhookUrlKind(), "where to send"] = ""
    events: Annotated[tuple[Annotated[str, WebhookEventKind()], ...], AtLeastOne, "which events to send"] = ()
    filter: Annotated[WebhookFilterSettings, "which jobs: type, match, priority, batch"] = WebhookFilterSettings()
    secret: Annotated[str, WebhookSecretKind(), "signs the deliveries; prefer secret_file"] = ""
    secret_file: Annotated[str, "file with the secret; during a rotation a second line holds the one before"] = ""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        for name in ("name", "url", "events"):
            if not getattr(self, name):
                yield "", f"has no {name}; give one"
        if bool(self.secret) == bool(self.secret_file):
            yield "", f"has {'both' if self.secret else 'neither'} secret {'and' if self.secret else 'nor'} secret_file"

    @property
    def webhook(self) -> Webhook:
        given = self.filter
        conditions = WebhookFilter(given.type or "", given.match or "", given.priority or "", given.batch or "")
        return Webhook(self.name, self.url, self.events, conditions)


class WebhookSettings(Section, frozen=True):
    allow_http: Annotated[bool, "also send to http:// URLs, unencrypted"] = False
    allow_networks: Annotated[
        tuple[Annotated[str, NetworkKind()], ...],
        "networks to send to although their addresses are not public, such as 10.1.0.0/16",
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
