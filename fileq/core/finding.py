"""The result of one check of what fileq depends on, for `fileq doctor` and for warnings at start. A value only."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from fileq.core.documented import means


class Finding(Struct, frozen=True):
    """`unknown`: the check could not decide."""

    name: Annotated[str, means("what was checked; several checks may share a name")]
    status: Annotated[str, means("ok, wrong or unknown")]
    detail: Annotated[str, means("what was found")]
    advice: Annotated[str, means("what to do; empty if nothing")] = ""


def sound(name: str, detail: str) -> Finding:
    return Finding(name, "ok", detail)


def wrong(name: str, detail: str, advice: str) -> Finding:
    return Finding(name, "wrong", detail, advice)


def unknown(name: str, detail: str, advice: str = "") -> Finding:
    return Finding(name, "unknown", detail, advice)
