"""The result of one check of what fileq depends on, for `fileq doctor` and for warnings at start. A value only."""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """`is_sound` is None if the check could not decide. `advice` is the next step if it is not sound."""

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
