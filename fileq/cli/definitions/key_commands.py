"""`fileq keys create|list|revoke`: the keys of the REST API. `fileq login-link`: a session of the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fileq.cli.arguments import argument, duration, utf8_text
from fileq.cli.command import Invocation, command, declared
from fileq.cli.definitions.role_commands import SERVER_OPTIONS
from fileq.cli.terminal import Screen, plural, screen_of_stdout, table
from fileq.core.api_key import Scope
from fileq.core.errors import ConfigError, FileqError, Unknown
from fileq.core.job import stamp
from fileq.core.text import printable

if TYPE_CHECKING:
    from fileq.commands.api_keys import KeyList, KeySummary, RevocationReport


@command(
    "keys create",
    "create an API key",
    argument("name", type=utf8_text, metavar="NAME", help="who uses it; unique among keys"),
    argument(
        "--scope",
        action="append",
        required=True,
        choices=[scope.value for scope in Scope],
        dest="scopes",
        metavar="SCOPE",
        help=f"what it may do; may be repeated: {', '.join(Scope)}",
    ),
    argument("--expires", type=duration, metavar="DURATION", help="lifetime of the key, such as 90d"),
    argument(
        "--allow-type",
        action="append",
        type=utf8_text,
        default=[],
        dest="types",
        metavar="TYPE",
        help="restrict it to jobs of this type; may be repeated",
    ),
    argument("--path-prefix", type=utf8_text, default="", metavar="DIR", help="only files below it and their jobs"),
    json_fields=declared("fileq.commands.api_keys:NewKey"),
)
def _create(invocation: Invocation) -> int:
    """Creates a key and prints it. It is shown only once, because the broker stores only its SHA-256. Programs send it
    as X-API-Key or Authorization: Bearer. It takes effect within 5 s.

    Scopes: read (see everything except file contents), enqueue (add jobs and uploads, see jobs by id), operate (read,
    and cancel, retry, run, pause, reprocess), files (file contents), admin (everything). A key with enqueue but not
    read sees only the jobs and batches that it created.

    --allow-type and --path-prefix restrict a key: it can enqueue, see and change only what they name. With
    --path-prefix alone it has no types and no commands; with --allow-type alone, no files.

    $ fileq keys create dashboard --scope read  # a read-only key
    $ fileq keys create scanner --scope enqueue --allow-type ocr --expires 90d  # one job type, for 90 days"""
    from fileq.commands.api_keys import KeyOptions, KeyStore
    from fileq.commands.audit_entries import new_key_facts
    from fileq.core.job import wall_clock_ms

    options = invocation.options
    if options.expires == 0:
        raise ConfigError("--expires is 0; it must be longer than 0")
    expires_ms = wall_clock_ms() + round(options.expires * 1000) if options.expires is not None else 0
    scopes, types = tuple(map(Scope, options.scopes)), tuple(options.types)
    wanted = KeyOptions(options.name, scopes, expires_ms, types, options.path_prefix)
    broker = invocation.broker(create=True)
    made = KeyStore(broker).create(wanted)
    invocation.note_change("create_key", "/keys", {}, new_key_facts(made, wanted))
    until = f" and expires {made.expires}" if made.expires else ""
    head = f"key {made.id} ({made.name}) takes effect within 5 s{until}; it is shown only once:"
    return invocation.answer_new(made, head, made.key)


@command("keys list", "list the API keys", json_fields=declared("fileq.commands.api_keys:KeyList"))
def _list(invocation: Invocation) -> int:
    """Lists the keys with their scopes, their restrictions and when each was last used, to the minute. The keys
    themselves are never shown.

    $ fileq keys list  # all keys
    $ fileq keys list --json  # as JSON"""
    from fileq.commands.api_keys import KeyStore

    found = KeyStore(invocation.broker()).summaries()
    return invocation.answer(found, lambda: render_keys(found, screen_of_stdout()))


def _expiry(one: KeySummary) -> str:
    if one.expires is None:
        return "never"
    return f"expired {one.expires[:10]}" if one.is_expired else f"{one.expires[:16].replace('T', ' ')}Z"


def _restriction(one: KeySummary) -> str:
    below = (f"files below {one.path_prefix}",) if one.path_prefix else ()
    return ", ".join((*(f"type {type}" for type in one.allowed_types), *below))


def render_keys(found: KeyList, screen: Screen) -> list[str]:
    if not found.keys:
        return ["no keys; create one with 'fileq keys create'"]
    from fileq.cli.job_text import ago

    has_restricted = any(map(_restriction, found.keys))  # without the column all fits in 80
    rows = [["id", "name", "scopes", *(["only"] if has_restricted else []), "expires", "last used"]]
    for one in found.keys:
        only = [_restriction(one) or "-"] if has_restricted else []
        used = ago(one.last_used) if one.last_used else "never"
        rows.append([one.id, one.name, " ".join(one.scopes), *only, _expiry(one), used])
    return table(rows, screen, flexible=3 if has_restricted else 2, from_left=False)


@command(
    "keys revoke",
    "revoke API keys",
    argument("keys", nargs="+", type=utf8_text, metavar="ID", help="id or name of a key"),
    json_fields=declared("fileq.commands.api_keys:RevocationReport"),
    only_confirms=True,
)
def _revoke(invocation: Invocation) -> int:
    """Revokes keys. Within 5 s servers reject them and end the sessions they started. Exit code 1 if a key is
    unknown; the others are revoked.

    $ fileq keys revoke scanner  # by its name; several may be given"""
    from fileq.commands.api_keys import KeyRevocation, KeyStore, RevocationReport
    from fileq.commands.audit_entries import key_facts

    store, results = KeyStore(invocation.broker()), list[KeyRevocation]()
    known = store.load()
    for wanted in dict.fromkeys(invocation.options.keys):
        try:
            id = store.revoke(wanted)
        except Unknown as error:
            results.append(KeyRevocation(wanted, "", "unknown", str(error)))
            continue
        facts = key_facts(known.get(id))
        invocation.note_change("revoke_key", f"/keys/{id}", facts, {})
        results.append(KeyRevocation(id, facts.get("name", ""), "revoked"))
    report = RevocationReport(sum(one.result == "revoked" for one in results), tuple(results))
    return invocation.answer(report, lambda: _revocations(report), 0 if report.count == len(results) else 1)


def _revocations(report: RevocationReport) -> list[str]:
    screen = screen_of_stdout()
    lines = [
        f"{printable(one.id)}: {screen.paint(one.result, 'red')}: {one.reason}"
        if one.reason
        else f"{one.id}  {printable(one.name)}"
        for one in report.results
    ]
    within = "; servers reject them within 5 s" if report.count else ""
    return [*lines, f"{plural(report.count, 'key')} revoked{within}"]


@command(
    "login-link",
    "print a one-time login link for the web console",
    *SERVER_OPTIONS,
    json_fields=(
        ("url", "string: the link, valid once"),
        ("name", "string: the name of the session"),
        ("expires", "string (RFC 3339): when it expires"),
    ),
)
def _link(invocation: Invocation) -> int:
    """Prints a one-time login link to the running server of this configuration. It is valid for 10 minutes and starts a
    session of 12 hours with the scope admin. Like `fileq keys create`, it needs access to the broker. Only the SHA-256
    of the link is stored, and the audit log records who created it.

    The address comes from server.bind and server.port; pass the same --bind and --port that the server was started
    with. Exit code 1 if no server answers there, or one that uses another broker. Does not work with broker: memory,
    which only the server's own process can reach.

    $ fileq login-link  # open this link in a browser
    $ fileq login-link --port 9000 --login-name maria  # for the server on port 9000; names the session maria"""
    from fileq.commands.api_keys import LINK_MS, KeyStore
    from fileq.commands.audit_entries import os_user
    from fileq.commands.server_checks import answers_health
    from fileq.config.http_settings import url_here
    from fileq.core.job import wall_clock_ms
    from fileq.server.authentication import BROKER_HEADER, signer_of

    options = invocation.options
    settings = invocation.config.server
    url = url_here(settings.bind, settings.port)
    broker = invocation.broker()
    if not answers_health(settings.bind, settings.port, "X-Request-Id"):
        raise FileqError(
            f"no fileq server is running at {url}; start one with 'fileq serve', or pass its --bind and --port"
        )
    if not answers_health(settings.bind, settings.port, BROKER_HEADER, signer_of(broker).broker_mark):
        where = "run this with its configuration, or give the --port of this one's server"
        raise FileqError(f"the fileq server at {url} uses another broker or database; {where}")
    name, expires = options.login_name or os_user(), stamp(wall_clock_ms() + LINK_MS)
    token = KeyStore(broker).create_link(name)
    invocation.note_change("create_login_link", "/login", {}, {"name": name, "expires": expires})
    link = f"{url}{settings.base_path}/login?once={token}"
    return invocation.answer({"url": link, "name": name, "expires": expires}, lambda: [link])
