"""The definitions of webhooks, and what is known of their receivers.

Definitions come from `webhooks.endpoints` of this process's configuration and from the catalog (`fileq webhook add`).
If both have a name, the configuration wins. The secret of an added webhook is in its document: a signature needs the
secret itself, so every program that can read the broker can read it. The secret of a configured one is in the
configuration or its file, never in the broker.

The state of a receiver, failures in a row and whether the webhook is disabled, is a document of another kind, so that a
failing receiver makes no worker read the definitions again, and configured webhooks can be disabled too.

What a kill -9 leaves: each document is the old or the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.catalog import Catalog, Table, check_name
from fileq.config.http_settings import EndpointSettings, WebhookSettings
from fileq.core.errors import BrokerError, ConfigError, Conflict, Unknown
from fileq.core.webhook import (
    SECRETS_MAX,
    WEBHOOK_EVENTS,
    WEBHOOKS_MAX,
    Webhook,
    WebhookFilter,
    new_secret,
    secret_key,
    url_problem,
)

ROTATION_MS = 24 * 3600 * 1000
FAILURES_MAX = 50
FAILING_MS = 24 * 3600 * 1000


class Secret(Struct, frozen=True, omit_defaults=True):
    """`until_ms` is the end of a secret that was replaced; 0 for the current one."""

    secret: str
    until_ms: int = 0

    def __repr__(self) -> str:
        return f"Secret('***', {self.until_ms})"


class StoredWebhook(Struct, frozen=True):
    """A document of the catalog."""

    url: str
    events: tuple[str, ...]
    filter: WebhookFilter
    secrets: tuple[Secret, ...]  # the current one first


class ReceiverState(Struct, frozen=True, omit_defaults=True):
    """`failures` in a row since `since_ms`. `disabled` says why no more is sent; "" while the webhook is enabled."""

    failures: int = 0
    since_ms: int = 0
    disabled: str = ""
    disabled_ms: int = 0


DEFINITIONS = Table[StoredWebhook]("webhooks", StoredWebhook)
STATES = Table[ReceiverState]("webhook-state", ReceiverState)


class KnownWebhook(Struct, frozen=True):
    """A webhook with everything that is known of it."""

    webhook: Webhook
    state: ReceiverState
    stored: StoredWebhook | None = None
    endpoint: EndpointSettings | None = None  # instead of `stored`, if the configuration defines it

    @property
    def is_configured(self) -> bool:
        return self.endpoint is not None

    def secrets(self, now_ms: int) -> list[bytes]:
        """The keys that sign now, the current one first. Raises ConfigError if there is none."""
        texts = self._secret_texts(now_ms)
        keys = [key for text in texts[:SECRETS_MAX] if (key := secret_key(text)) is not None]
        if not keys or len(keys) < len(texts):
            raise ConfigError(f"webhook {self.webhook.name!r} has no valid secret; a secret is whsec_ and base64")
        return keys

    def _secret_texts(self, now_ms: int) -> list[str]:
        if self.stored is not None:
            return [one.secret for one in self.stored.secrets if not one.until_ms or one.until_ms > now_ms]
        assert self.endpoint is not None
        if not self.endpoint.secret_file:
            return [self.endpoint.secret]
        # Read for each delivery, so that a rotation needs no restart.
        path = self.endpoint.secret_file
        try:
            return Path(path).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(
                f"the secret_file {path!r} of webhook {self.webhook.name!r} can't be read: {reason}"
            ) from error


class WebhookStore:
    """`problems` are what load() could not use, one line each."""

    def __init__(self, catalog: Catalog, settings: WebhookSettings, now_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self._settings = settings
        self._now_ms = now_ms
        self.problems: tuple[str, ...] = ()

    def revision(self) -> int:
        """Grows with every change of a definition or a state. Cheap."""
        return self._catalog.catalog_revision(DEFINITIONS.kind, STATES.kind)

    def load(self) -> dict[str, KnownWebhook]:
        """All webhooks by name, those of the configuration first."""
        problems: list[str] = []

        def unreadable(name: str, error: Exception) -> None:
            problems.append(f"the definition of webhook {name!r} can't be read: {error}")

        states = STATES.read(self._catalog.documents(STATES.kind), unreadable)
        stored = DEFINITIONS.read(self._catalog.documents(DEFINITIONS.kind), unreadable)
        known = {
            endpoint.name: KnownWebhook(endpoint.webhook, states.get(endpoint.name, ReceiverState()), endpoint=endpoint)
            for endpoint in self._settings.endpoints
        }
        for name, document in sorted(stored.items()):
            if name not in known:
                webhook = Webhook(name, document.url, document.events, document.filter)
                known[name] = KnownWebhook(webhook, states.get(name, ReceiverState()), stored=document)
        self.problems = tuple(problems)
        return known

    def get(self, name: str) -> KnownWebhook:
        """Raises Unknown if there is none."""
        known = self.load()
        if name not in known:
            there_are = f"there are: {', '.join(known)}" if known else "there are none"
            raise Unknown(f"no webhook is named {name!r}; {there_are}")
        return known[name]

    # changes of definitions

    def add(self, webhook: Webhook) -> str:
        """Stores a new webhook and returns its secret. Raises ConfigError if it is wrong or its name is taken."""
        known = self.load()
        if problems := [*definition_problems(webhook, self._settings)]:
            raise ConfigError(problems)
        if webhook.name in known:
            raise ConfigError(f"webhook {webhook.name!r} exists already; 'fileq webhook remove' removes it")
        if len(known) >= WEBHOOKS_MAX:
            raise ConfigError(f"there are {len(known)} webhooks; at most {WEBHOOKS_MAX} are allowed")
        secret = new_secret()
        stored = StoredWebhook(webhook.url, webhook.events, webhook.filter, (Secret(secret),))
        try:
            STATES.remove(self._catalog, webhook.name)  # the state of an earlier webhook with this name
            DEFINITIONS.put(self._catalog, webhook.name, stored, expected=0)
        except Conflict as error:
            raise ConfigError(f"webhook {webhook.name!r} was added by another process just now") from error
        return secret

    def remove(self, name: str) -> None:
        """Also removes a document that can't be read. Raises ConfigError for a configured webhook, Unknown for none."""
        if any(endpoint.name == name for endpoint in self._settings.endpoints):
            raise ConfigError(f"webhook {name!r} is defined in the configuration; remove it from webhooks.endpoints")
        if not DEFINITIONS.remove(self._catalog, name):
            self.get(name)
        STATES.remove(self._catalog, name)

    def rotate(self, name: str) -> tuple[str, int]:
        """Replaces the secret; the old one signs for 24 hours more. Returns the new one, and when the old one ends."""
        if self.get(name).is_configured:
            raise ConfigError(
                f"the secret of webhook {name!r} is in the configuration; write a new one into its secret_file, "
                "with the old one in a second line for a day"
            )
        secret, until_ms = new_secret(), self._now_ms() + ROTATION_MS

        def rotated(stored: StoredWebhook | None) -> StoredWebhook:
            if stored is None:
                raise Unknown(f"webhook {name!r} was removed just now")
            return replace(stored, secrets=(Secret(secret), Secret(stored.secrets[0].secret, until_ms)))

        DEFINITIONS.change(self._catalog, name, rotated)
        return secret, until_ms

    # changes of states

    def enable(self, name: str) -> bool:
        """Sends again, and forgets the failures. False if the webhook was enabled."""
        was_disabled = bool(self.get(name).state.disabled)
        STATES.remove(self._catalog, name)
        return was_disabled

    def disable(self, name: str, reason: str) -> bool:
        """Sends no more until enable(). True for the one caller that disabled it."""
        now_ms, was_enabled = self._now_ms(), False

        def disabled(state: ReceiverState | None) -> ReceiverState:
            nonlocal was_enabled
            state = state or ReceiverState()
            was_enabled = not state.disabled
            return replace(state, disabled=reason, disabled_ms=now_ms) if was_enabled else state

        STATES.change(self._catalog, name, disabled)
        return was_enabled

    def count_failure(self, name: str) -> ReceiverState:
        """Adds one to the failures in a row. Returns the new state."""
        now_ms = self._now_ms()

        def failed(state: ReceiverState | None) -> ReceiverState:
            state = state or ReceiverState()
            return replace(state, failures=state.failures + 1, since_ms=state.since_ms or now_ms)

        return STATES.change(self._catalog, name, failed)

    def forget_failures(self, name: str) -> None:
        """The receiver has answered. A webhook that is disabled stays so."""
        if STATES.get(self._catalog, name) in (None, ReceiverState()):
            return
        STATES.change(self._catalog, name, lambda state: state if state and state.disabled else ReceiverState())

    def is_failing_too_long(self, state: ReceiverState) -> bool:
        return state.failures >= FAILURES_MAX and self._now_ms() - state.since_ms >= FAILING_MS


def definition_problems(webhook: Webhook, settings: WebhookSettings, queues: Sequence[str] = ()) -> Iterable[str]:
    """What is wrong with a definition."""
    try:
        check_name("webhook", webhook.name)
    except BrokerError as error:
        yield str(error)
    if problem := url_problem(webhook.url, allow_http=settings.allow_http, allow_ports=settings.allow_ports):
        yield f"the url of webhook {webhook.name!r} {problem}"
    if not webhook.events:
        yield f"webhook {webhook.name!r} has no events; known: {', '.join(WEBHOOK_EVENTS)}"
    for event in webhook.events:
        if event not in WEBHOOK_EVENTS:
            yield f"webhook {webhook.name!r} has the unknown event {event!r}; known: {', '.join(WEBHOOK_EVENTS)}"
    if queues and webhook.filter.priority and webhook.filter.priority not in queues:
        yield f"webhook {webhook.name!r} has the unknown queue {webhook.filter.priority!r}; known: {', '.join(queues)}"
