"""What the audit says of the things that people define: keys, webhooks, schedules. Never a secret. Does no I/O.

The API and the commands of `fileq` use the same functions, so that their entries can be compared.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fileq.brokers.catalog import Document
from fileq.commands.api_keys import KeyOptions, NewKey
from fileq.core.api_key import StoredKey
from fileq.core.schedule import decode_document
from fileq.core.units import format_duration
from fileq.core.webhook import Webhook, shown_url


def new_key_facts(made: NewKey, options: KeyOptions) -> dict[str, Any]:
    """Without the key itself."""
    return {
        "id": made.id,
        "name": made.name,
        "scopes": ", ".join(made.scopes),
        "expires": made.expires,
        "allowed_types": ", ".join(options.allowed_types),
        "path_prefix": options.path_prefix,
    }


def key_facts(key: StoredKey | None) -> dict[str, Any]:
    return {"name": key.name, "scopes": ", ".join(key.scopes)} if key is not None else {}


def webhook_facts(webhook: Webhook) -> dict[str, Any]:
    """No secret, and no query of the URL."""
    return {
        "url": shown_url(webhook.url),
        "events": ", ".join(webhook.events),
        **msgspec.structs.asdict(webhook.filter),
    }


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
