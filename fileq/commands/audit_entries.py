"""The audit list: who did what, the newest 10,000 entries. Documents of the catalog, which every broker has.

What was refused has a list of its own: however many requests of a caller are refused, they push out nothing that was
done. Readers get both as one.

Entries of a moment share one new document, so no writer ever changes the document of another. A server writes the
entries of its requests, a command of `fileq` its own. What a kill -9 leaves: each document whole, or none.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Struct

from fileq.brokers.catalog import CappedLog, Catalog, Document, entry_name
from fileq.commands.api_keys import KeyOptions, NewKey
from fileq.core.api_key import StoredKey
from fileq.core.job import stamp, wall_clock_ms
from fileq.core.schedule import decode_document
from fileq.core.units import format_duration
from fileq.core.webhook import Webhook, shown_url

ENTRIES_MAX, REFUSED_MAX = 10_000, 2_000
DOCUMENT_ENTRIES_MAX = 100
DOCUMENT_BYTES = 48_000  # of the entries of one document; a catalog takes 64 KiB
TEXT_MAX = 200
CHANGES_MAX = 20
COMMAND_LINE = "command line"  # the caller_id of a command
DONE = 200
_KEY = re.compile(r"(fq_[A-Za-z0-9]{8}_)[\w-]{20,}")


class AuditChange(Struct, frozen=True):
    """One field that has another value now. None: there was no such field, or there is none any more."""

    field: str
    old: str | None
    new: str | None


class AuditEntry(Struct, frozen=True, omit_defaults=True):
    """`who` is the name of the key or user. `result` is the status of the answer. `job_id`, `type` and `path` are those
    of the one job that it is about, `detail` says which jobs or files were chosen. `action_id` is the action on jobs
    that it began: its page shows the results."""

    at: str
    who: str
    caller_id: str
    action: str
    target: str
    count: int
    result: int
    request_id: str
    changes: tuple[AuditChange, ...] = ()
    job_id: str = ""
    type: str = ""
    path: str = ""
    detail: str = ""
    action_id: str = ""
    is_dry_run: bool = False

    @property
    def log(self) -> CappedLog[list[AuditEntry]]:
        return AUDIT_REFUSED if self.result >= 400 else AUDIT


AUDIT = CappedLog[list[AuditEntry]]("audit", list[AuditEntry], ENTRIES_MAX, len)
AUDIT_REFUSED = CappedLog[list[AuditEntry]]("audit-refused", list[AuditEntry], REFUSED_MAX, len)


class AuditPosition(Struct, frozen=True, array_like=True):
    """The last entry of a page: its time, its document, and its place there."""

    at: str
    document: str
    place: int


def changes_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[AuditChange, ...]:
    """The fields whose values differ, as short texts."""
    names = dict.fromkeys((*new, *old))
    found = [AuditChange(name, _text(old.get(name)), _text(new.get(name))) for name in names]
    return tuple(one for one in found if one.old != one.new)[:CHANGES_MAX]


def _text(value: Any) -> str | None:
    """None for what is not set. A text as it is, so that people read it without quotes."""
    if value is None or value in ("", [], (), {}):
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode(errors="replace")
    return short(text)


def short(text: str) -> str:
    """At most TEXT_MAX characters, without keys that were sent by mistake."""
    text = _KEY.sub(r"\1***", text)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def one_document(entries: Sequence[AuditEntry]) -> list[AuditEntry]:
    """The first of the entries, as many as one document takes; at least one."""
    size = 0
    for number, entry in enumerate(entries[:DOCUMENT_ENTRIES_MAX]):
        size += len(msgspec.json.encode(entry)) + 1
        if number and size > DOCUMENT_BYTES:
            return list(entries[:number])
    return list(entries[:DOCUMENT_ENTRIES_MAX])


def write_command(catalog: Catalog, /, action: str, target: str, *, count: int = 1, **more: Any) -> None:
    """The entry of a command that was run by hand just now. `more` are fields of an entry that have defaults."""
    now_ms, who = wall_clock_ms(), command_line_user()
    entry = AuditEntry(stamp(now_ms) or "", who, COMMAND_LINE, action, short(target), count, DONE, "", **more)
    entry.log.add(catalog, entry_name(now_ms), [entry])


def audit_page(
    catalog: Catalog,
    limit: int,
    after: AuditPosition | None = None,
    *,
    has_dry_runs: bool = True,
    who: str | None = None,
    action: str | None = None,
    caller_id: str | None = None,
) -> tuple[list[AuditEntry], AuditPosition | None]:
    """Entries, newest first, and where the next page begins; None at the end. Two entries of one millisecond may be in
    any order, which stays the same. No entry is on two pages: one that is added meanwhile is newer, or is left out.
    `who`, `action` and `caller_id` leave out the entries of others."""
    done, refused = catalog.documents_of([AUDIT.kind, AUDIT_REFUSED.kind])
    # What was done and what was refused in one moment are in two documents, and the clocks of two servers differ.
    known: list[tuple[tuple[str, str, int], AuditEntry]] = []
    for name, entries in (AUDIT.read(done) | AUDIT_REFUSED.read(refused)).items():
        known += (((entry.at, name, place), entry) for place, entry in enumerate(entries))
    known.sort(key=itemgetter(0), reverse=True)
    end = (after.at, after.document, after.place) if after is not None else None
    found: list[AuditEntry] = []
    for position, entry in known:
        wanted = ((who, entry.who), (action, entry.action), (caller_id, entry.caller_id))
        is_other = any(value not in (None, of_entry) for value, of_entry in wanted)
        if is_other or (entry.is_dry_run and not has_dry_runs) or (end is not None and position >= end):
            continue
        found.append(entry)
        if len(found) == limit:
            return found, AuditPosition(*position)
    return found, None


# What the audit says of the things that people define: keys, webhooks, schedules. Never a secret. Does no I/O.
#
# The API and the commands of `fileq` use the same functions, so that their entries can be compared.


def new_key_facts(made: NewKey, options: KeyOptions) -> dict[str, Any]:
    """Without the key itself."""
    facts = {"id": made.id, "name": made.name, "scopes": ", ".join(made.scopes), "expires": made.expires}
    return facts | {"allowed_types": ", ".join(options.allowed_types), "path_prefix": options.path_prefix}


def key_facts(key: StoredKey | None) -> dict[str, Any]:
    return {"name": key.name, "scopes": ", ".join(key.scopes)} if key is not None else {}


def webhook_facts(webhook: Webhook) -> dict[str, Any]:
    """No secret, and no query of the URL."""
    facts = {"url": shown_url(webhook.url), "events": ", ".join(webhook.events)}
    return facts | msgspec.structs.asdict(webhook.filter)


def schedule_facts(document: Document | None, *, is_whole: bool = False) -> dict[str, Any]:
    """The fields of a definition that are set, or with `is_whole` all of them."""
    if document is None:
        return {}
    try:
        definition = decode_document(document.body).definition
    except ValueError:  # it can't be read, so it is replaced as a whole
        return {}
    found = dict(msgspec.structs.asdict(definition) if is_whole else msgspec.to_builtins(definition))
    for name in ("within_s", "timeout_s"):
        if found.get(name) is not None:
            found[name.removesuffix("_s")] = format_duration(found.pop(name))
    return found


# Who works on this machine: the name that notes, the audit and the sessions of a one-time link show to others.


def os_user() -> str:
    """The name of the user of this process. The system may know none, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "an unknown user"


def command_line_user() -> str:
    return f"{os_user()} on {socket.gethostname()}, command line"
