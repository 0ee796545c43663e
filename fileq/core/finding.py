"""One thing found out about fileq's surroundings: is it as it should be, and if not, what to do."""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """`is_sound` is None where it can't be told."""

    name: str
    is_sound: bool | None
    detail: str
    advice: str = ""


def sound(name: str, detail: str) -> Finding:
    return Finding(name, True, detail)


def wrong(name: str, detail: str, advice: str) -> Finding:
    return Finding(name, False, detail, advice)


def unknown(name: str, detail: str, advice: str = "") -> Finding:
    return Finding(name, None, detail, advice)
