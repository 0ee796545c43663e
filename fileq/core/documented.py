"""What a field of a document means: --help, docs/cli.md and docs/openapi.json have these texts."""

from __future__ import annotations

from msgspec import Meta


def means(text: str) -> Meta:
    return Meta(description=text)
