"""Webhooks: define, test, look at deliveries. The functions are those of `fileq webhook …`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from msgspec import Meta, Struct, UnsetType

from fileq.commands import webhooks
from fileq.commands.audit_entries import webhook_facts
from fileq.commands.webhooks import DeliveryList, NewSecret, WebhookChange, WebhookList, WebhookTest
from fileq.core.api_key import Scope
from fileq.core.webhook import Webhook, WebhookFilter
from fileq.server.problems import ApiProblem
from fileq.server.route import ApiRequest, NoQuery, Route
from fileq.webhooks.store import KnownWebhook

T = TypeVar("T")
Condition = Annotated[str, Meta(max_length=500)]


class WantedWebhook(Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook to add. `type`, `match`, `queue` and `batch` limit the jobs whose events are sent."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    events: Annotated[tuple[str, ...], Meta(min_length=1, max_length=50)]
    type: Condition = ""
    match: Condition = ""
    queue: Condition = ""
    batch: Condition = ""


class DeliveryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


def list_webhooks(request: ApiRequest[NoQuery, UnsetType]) -> WebhookList:
    """Without secrets, and without the queries of URLs."""
    return webhooks.list_all(request.services.broker, request.services.config)


def add_webhook(request: ApiRequest[NoQuery, WantedWebhook]) -> NewSecret:
    """The secret that signs the messages is shown only here."""
    wanted, services = request.body, request.services
    only = WebhookFilter(wanted.type, wanted.match, wanted.queue, wanted.batch)
    made = webhooks.add(services.broker, services.config, wanted.name, wanted.url, wanted.events, only)
    request.note.changed({}, {"name": made.name} | webhook_facts(Webhook(made.name, wanted.url, wanted.events, only)))
    return made


def remove_webhook(request: ApiRequest[NoQuery, UnsetType]) -> WebhookChange:
    def remove(known: KnownWebhook) -> WebhookChange:
        done = webhooks.remove(request.services.broker, request.services.config, known.webhook.name)
        request.note.changed(webhook_facts(known.webhook), {})
        return done

    return _named(request, remove)


async def send_test_message(request: ApiRequest[NoQuery, UnsetType]) -> WebhookTest:
    """The server sends one message now. `error` is empty if the receiver accepted it."""
    services = request.services

    def test(known: KnownWebhook) -> WebhookTest:
        return webhooks.test(services.broker, services.config, known.webhook.name)

    with services.webhook_tests.slot(request.caller.id):
        return await services.webhook_tests.call(lambda: _named(request, test))


def rotate_webhook(request: ApiRequest[NoQuery, UnsetType]) -> NewSecret:
    """A new secret, shown only here. The one before signs too, for 24 hours."""

    def rotate(known: KnownWebhook) -> NewSecret:
        made = webhooks.rotate(request.services.broker, request.services.config, known.webhook.name)
        request.note.changed({}, {"secret": "replaced"})
        return made

    return _named(request, rotate)


def enable_webhook(request: ApiRequest[NoQuery, UnsetType]) -> WebhookChange:
    def enable(known: KnownWebhook) -> WebhookChange:
        done = webhooks.enable(request.services.broker, request.services.config, known.webhook.name)
        if done.has_changed:
            request.note.changed({"state": "disabled"}, {"state": "enabled"})
        return done

    return _named(request, enable)


def list_deliveries(request: ApiRequest[DeliveryQuery, UnsetType]) -> DeliveryList:
    """The newest first, also of a webhook that was removed; of each list of jobs the first 10,000 are looked at."""
    name, services = request.params["name"], request.services
    return webhooks.deliveries(services.broker, services.config, name, request.query.limit)


def _named(request: ApiRequest[NoQuery, UnsetType], call: Callable[[KnownWebhook], T]) -> T:
    """The result for the webhook that the path names."""
    name, services = request.params["name"], request.services
    known = webhooks.store_of(services.broker, services.config).load()
    if name not in known:
        raise ApiProblem("not-found", f"no webhook is named {name[:100]!r}; there are: {', '.join(known) or 'none'}")
    return call(known[name])


ROUTES = (
    Route(
        method="GET",
        path="/webhooks",
        area="webhooks",
        scopes=(Scope.READ,),
        summary="all webhooks and the state of their receivers",
        function=list_webhooks,
        response=WebhookList,
    ),
    Route(
        method="POST",
        path="/webhooks",
        area="webhooks",
        scopes=(Scope.ADMIN,),
        summary="send events to a URL; the secret is shown only here",
        function=add_webhook,
        body=WantedWebhook,
        response=NewSecret,
        status=201,
        problems=("conflict",),
    ),
    Route(
        method="DELETE",
        path="/webhooks/{name}",
        area="webhooks",
        scopes=(Scope.ADMIN,),
        summary="remove a webhook",
        function=remove_webhook,
        response=WebhookChange,
        problems=("conflict",),
    ),
    Route(
        method="POST",
        path="/webhooks/{name}/test",
        area="webhooks",
        scopes=(Scope.OPERATE,),
        summary="send one message now and show the answer",
        function=send_test_message,
        response=WebhookTest,
    ),
    Route(
        method="POST",
        path="/webhooks/{name}/rotate",
        area="webhooks",
        scopes=(Scope.ADMIN,),
        summary="replace the secret; it is shown only here",
        function=rotate_webhook,
        response=NewSecret,
        problems=("conflict",),
    ),
    Route(
        method="POST",
        path="/webhooks/{name}/enable",
        area="webhooks",
        scopes=(Scope.OPERATE,),
        summary="send to a disabled webhook again",
        function=enable_webhook,
        response=WebhookChange,
        problems=("conflict",),
    ),
    Route(
        method="GET",
        path="/webhooks/{name}/deliveries",
        area="webhooks",
        scopes=(Scope.READ,),
        summary="the newest deliveries of a webhook",
        function=list_deliveries,
        query=DeliveryQuery,
        response=DeliveryList,
        is_scan=True,
    ),
)
