"""`fileq webhook add|list|remove|test|deliveries|rotate|enable`: tell other programs about jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fileq.cli.arguments import argument, utf8_text, whole_number
from fileq.cli.command import Invocation, command, declared
from fileq.cli.terminal import moment, plural, screen_of_stdout, short_ids, table
from fileq.core.job import parse_time
from fileq.core.text import printable
from fileq.core.webhook import WEBHOOK_EVENTS, Webhook, WebhookFilter

if TYPE_CHECKING:
    from fileq.commands.webhooks import DeliveryList, WebhookList

_SECRET = declared("fileq.commands.webhooks:NewSecret")
_CHANGE = declared("fileq.commands.webhooks:WebhookChange")
_LIST = declared("fileq.commands.webhooks:WebhookList")
_TEST = declared("fileq.commands.webhooks:WebhookTest")
_NAME_ARGUMENT = argument("name", type=utf8_text, metavar="NAME", help="name of the webhook")


@command(
    "webhook add",
    "add a webhook: send events to a URL",
    argument("name", type=utf8_text, metavar="NAME", help="letters, digits, '.', '_' and '-'"),
    argument("url", type=utf8_text, metavar="URL", help="where to send messages (https)"),
    argument(
        "--event",
        action="append",
        required=True,
        choices=WEBHOOK_EVENTS,
        dest="events",
        metavar="EVENT",
        help=f"an event; may be repeated: {', '.join(WEBHOOK_EVENTS)}",
    ),
    argument("--type", type=utf8_text, default="", metavar="TYPE", help="only jobs of this type"),
    argument("--match", type=utf8_text, default="", metavar="GLOB", help="only jobs whose file matches"),
    argument("--queue", type=utf8_text, default="", metavar="QUEUE", help="only jobs of this queue"),
    argument("--batch", type=utf8_text, default="", metavar="ID", help="only jobs of this batch"),
    json_fields=_SECRET,
)
def _add(invocation: Invocation) -> int:
    """Adds a webhook: fileq sends a signed message to the URL when one of these events happens to a job that matches
    the filters. Takes effect within 5 s. Prints the secret that signs the messages; it is shown only once.

    The URL must be https and resolve to a public address, unless `webhooks.allow_http`, `allow_ports` and
    `allow_networks` permit others. The address of a name is checked at each delivery. docs/webhooks.md shows how a
    receiver verifies a message.

    $ fileq webhook add alerts https://example.org/hook --event job.dead  # report dead jobs
    $ fileq webhook add r https://example.org/r --event job.failed --type report
      # report failed attempts of one job type
    """
    from fileq.commands.audit_entries import webhook_facts
    from fileq.commands.webhooks import add

    options = invocation.options
    wanted = WebhookFilter(options.type, options.match, options.queue, options.batch)
    config, broker = invocation.config, invocation.broker(create=True)
    made = add(broker, config, options.name, options.url, options.events, wanted)
    facts = webhook_facts(Webhook(made.name, options.url, tuple(options.events), wanted))
    invocation.note_change("add_webhook", "/webhooks", {}, {"name": made.name, **facts})
    head = f"webhook {made.name} takes effect within 5 s; its secret, shown only once:"
    return invocation.answer_new(made, head, made.secret)


@command("webhook list", "list webhooks and the state of their receivers", json_fields=_LIST)
def _list(invocation: Invocation) -> int:
    """Lists the webhooks from the configuration and those added with `fileq webhook add`. Secrets are not shown, and of
    each URL only the scheme and host. A disabled webhook gets no more deliveries: its receiver answered 410, or failed
    50 times in a row over a day.

    $ fileq webhook list  # all webhooks
    $ fileq webhook list --json  # as JSON"""
    from fileq.commands.webhooks import list_all

    found = list_all(invocation.broker(), invocation.config)
    return invocation.answer(found, lambda: _webhook_lines(found))


def _webhook_lines(found: WebhookList) -> list[str]:
    lines = [] if found.webhooks else ["no webhooks; add one with 'fileq webhook add'"]
    rows = [["name", "status", "events", "filter", "url"]]
    notes = []
    for one in found.webhooks:
        conditions = ", ".join(f"{name} {value}" for name, value in one.filter.items())
        rows.append([one.name, one.status, " ".join(one.events), conditions or "-", one.url])
        if one.disabled_because:
            notes.append(f"{one.name}: disabled since {one.disabled_at}: {one.disabled_because}")
        elif one.failures:
            notes.append(f"{one.name}: {plural(one.failures, 'failure')} in a row since {one.failing_since}")
    lines += table(rows, screen_of_stdout()) if found.webhooks else []
    return [*lines, *map(printable, (*notes, *found.problems))]


@command("webhook remove", "remove a webhook", _NAME_ARGUMENT, json_fields=_CHANGE, only_confirms=True)
def _remove(invocation: Invocation) -> int:
    """Removes a webhook added with `fileq webhook add`. Pending deliveries are completed without being sent. A webhook
    from the configuration must be removed there.

    $ fileq webhook remove alerts  # stop sending"""
    from fileq.commands.audit_entries import webhook_facts
    from fileq.commands.webhooks import remove, store_of

    broker, config, name = invocation.broker(), invocation.config, invocation.options.name
    known = store_of(broker, config).load().get(name)
    result = remove(broker, config, name)
    facts = webhook_facts(known.webhook) if known is not None else {}
    invocation.note_change("remove_webhook", f"/webhooks/{name}", facts, {})
    return invocation.answer(result, lambda: [f"webhook {result.name} removed; pending deliveries will not be sent"])


@command("webhook test", "send a test message and show the response", _NAME_ARGUMENT, json_fields=_TEST)
def _test(invocation: Invocation) -> int:
    """Sends a message of type `webhook.test` from this machine and waits up to 20 s for the response. Nothing is
    retried and no job is created. Exit code 1 if the receiver does not accept it.

    $ fileq webhook test alerts  # does the receiver accept messages?"""
    from fileq.commands.webhooks import test

    done = test(invocation.broker(), invocation.config, invocation.options.name)
    invocation.note_change("send_test_message", f"/webhooks/{invocation.options.name}/test", {}, {})
    fate = f"failed: {done.error}" if done.error else f"accepted with {done.answer_status} in {done.duration_s:g}s"
    lines = [printable(fate), *([f"response: {done.answer}"] if done.answer else [])]
    return invocation.answer(done, lambda: lines, 1 if done.error else 0)


@command(
    "webhook deliveries",
    "list the deliveries of a webhook",
    _NAME_ARGUMENT,
    argument("-n", type=whole_number(1), default=20, metavar="N", dest="limit", help="show at most N (default: 20)"),
    json_fields=declared("fileq.commands.webhooks:DeliveryList"),
)
def _deliveries(invocation: Invocation) -> int:
    """Lists the newest deliveries with the response or error of the last attempt. A delivery is a job of type
    fileq.webhook: `fileq show ID` shows all its attempts, `fileq dlq retry ID` sends a dead one again. Searches the
    newest 10,000 jobs of each list; records are kept for worker.history_ttl.

    $ fileq webhook deliveries alerts  # what was sent?"""
    from fileq.commands.webhooks import deliveries

    options = invocation.options
    found = deliveries(invocation.broker(), invocation.config, options.name, options.limit)
    return invocation.answer(found, lambda: _delivery_table(found))


def _delivery_table(found: DeliveryList) -> list[str]:
    if not found.deliveries:
        return ["no deliveries"]
    rows = [["id", "event", "status", "attempts", "created", "response"]]
    short = short_ids([one.id for one in found.deliveries])
    for one in found.deliveries:
        answer = one.error or str(one.answer_status or "-")
        created = parse_time(one.created_at or "")
        shown = moment(int(created.timestamp() * 1000)) if created else "-"
        rows.append([short[one.id], one.event, one.status, str(one.attempt_count), shown, answer])
    return table(rows, screen_of_stdout(), from_left=False)


@command("webhook rotate", "replace the secret of a webhook", _NAME_ARGUMENT, json_fields=_SECRET)
def _rotate(invocation: Invocation) -> int:
    """Creates a new secret and prints it; it is shown only once. For 24 hours messages are signed with both secrets, so
    receivers can switch at any time. The secret of a webhook from the configuration must be replaced there.

    $ fileq webhook rotate alerts  # replace the secret"""
    from fileq.commands.webhooks import rotate

    made = rotate(invocation.broker(), invocation.config, invocation.options.name)
    invocation.note_change("rotate_webhook", f"/webhooks/{invocation.options.name}/rotate", {}, {"secret": "replaced"})
    until = f"the old one is valid until {made.previous_secret_until}"
    head = f"the new secret of webhook {made.name}, shown only once; {until}:"
    return invocation.answer_new(made, head, made.secret)


@command("webhook enable", "re-enable a disabled webhook", _NAME_ARGUMENT, json_fields=_CHANGE, only_confirms=True)
def _enable(invocation: Invocation) -> int:
    """Enables a webhook that was disabled because its receiver answered 410 or failed for a day, and resets its failure
    count. Deliveries that failed in the meantime are in the dead-letter queue; `fileq dlq retry` sends them again.

    $ fileq webhook enable alerts  # the receiver is back"""
    from fileq.commands.webhooks import enable

    result = enable(invocation.broker(), invocation.config, invocation.options.name)
    if result.has_changed:
        invocation.note_change(
            "enable_webhook", f"/webhooks/{invocation.options.name}/enable", {"state": "disabled"}, {"state": "enabled"}
        )
    again = "then resend missed deliveries with 'fileq dlq retry --all --type fileq.webhook'"
    changed = f"enabled; workers pick it up within 5 s, {again}" if result.has_changed else "was not disabled"
    return invocation.answer(result, lambda: [f"webhook {result.name} {changed}"])
