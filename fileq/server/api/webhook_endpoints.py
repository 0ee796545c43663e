"""Webhooks: define, test, look at deliveries. The functions are those of `fileq webhook …`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, UnsetType

from fileq.commands import webhooks
from fileq.commands.audit_entries import webhook_facts
from fileq.commands.webhooks import DeliveryList, NewSecret, WebhookChange, WebhookList, WebhookTest
from fileq.core.api_key import Scope
from fileq.core.webhook import Webhook, WebhookFilter
from fileq.server.problems import ApiProblem
from fileq.server.route import ApiRequest, NoQuery, RouteList

ROUTES = RouteList("webhooks")

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


@ROUTES.add("GET /webhooks", Scope.READ, "all webhooks and the state of their receivers")
def list_webhooks(request: ApiRequest[NoQuery, UnsetType]) -> WebhookList:
    """Without secrets, and without the queries of URLs."""
    return webhooks.list_all(request.broker, request.config)


@ROUTES.add(
    "POST /webhooks", Scope.ADMIN, "add a webhook; its secret is shown only here", status=201, problems=("conflict",)
)
def add_webhook(request: ApiRequest[NoQuery, WantedWebhook]) -> NewSecret:
    """The secret that signs the messages is shown only here."""
    wanted = request.body
    only = WebhookFilter(wanted.type, wanted.match, wanted.queue, wanted.batch)
    made = webhooks.add(request.broker, request.config, wanted.name, wanted.url, wanted.events, only)
    request.note.changed({}, {"name": made.name} | webhook_facts(Webhook(made.name, wanted.url, wanted.events, only)))
    return made


@ROUTES.add("DELETE /webhooks/{name}", Scope.ADMIN, "remove a webhook", problems=("conflict",))
def remove_webhook(request: ApiRequest[NoQuery, UnsetType]) -> WebhookChange:
    known = _known(request)
    done = webhooks.remove(request.broker, request.config, known.name)
    request.note.changed(webhook_facts(known), {})
    return done


@ROUTES.add("POST /webhooks/{name}/test", Scope.OPERATE, "send one message now and show the answer")
async def send_test_message(request: ApiRequest[NoQuery, UnsetType]) -> WebhookTest:
    """The server sends one message now. `error` is empty if the receiver accepted it."""
    tests = request.services.webhook_tests
    with tests.slots.held(request.caller.id):
        return await tests.call(lambda: webhooks.test(request.broker, request.config, _known(request).name))


@ROUTES.add(
    "POST /webhooks/{name}/rotate", Scope.ADMIN, "replace the secret; it is shown only here", problems=("conflict",)
)
def rotate_webhook(request: ApiRequest[NoQuery, UnsetType]) -> NewSecret:
    """A new secret, shown only here. The one before signs too, for 24 hours."""
    made = webhooks.rotate(request.broker, request.config, _known(request).name)
    request.note.changed({}, {"secret": "replaced"})
    return made


@ROUTES.add("POST /webhooks/{name}/enable", Scope.OPERATE, "send to a disabled webhook again", problems=("conflict",))
def enable_webhook(request: ApiRequest[NoQuery, UnsetType]) -> WebhookChange:
    done = webhooks.enable(request.broker, request.config, _known(request).name)
    if done.has_changed:
        request.note.changed({"state": "disabled"}, {"state": "enabled"})
    return done


@ROUTES.add("GET /webhooks/{name}/deliveries", Scope.READ, "the newest deliveries of a webhook", is_scan=True)
def list_deliveries(request: ApiRequest[DeliveryQuery, UnsetType]) -> DeliveryList:
    """The newest first, also of a webhook that was removed; of each list of jobs the first 10,000 are looked at."""
    return webhooks.deliveries(request.broker, request.config, request.params["name"], request.query.limit)


def _known(request: ApiRequest[NoQuery, UnsetType]) -> Webhook:
    """The webhook that the path names."""
    name, known = request.params["name"], webhooks.store_of(request.broker, request.config).load()
    if name not in known:
        raise ApiProblem("not-found", f"no webhook is named {name[:100]!r}; there are: {', '.join(known) or 'none'}")
    return known[name].webhook
