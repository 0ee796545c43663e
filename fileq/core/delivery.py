"""The job that checks one file of a delivery: its type, its payload, and what is wrong with the file. Values only.

A producer makes such a job for each problem that it finds when it seals a delivery. The job is a member of the batch
and fails with the problem, so that the file is among the dead letters. Retried, it checks again.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

CHECK_TYPE = "fileq.delivery_check"
ALSO_MAX = 20  # other problems that one error names
_ALSO = "; also: "
_CUT_FROM = 200  # characters of an error that may have been cut
# As problem_of() writes them. An error that is too long is cut, perhaps within a path.
_KINDS = "(?:missing|wrong size|wrong checksum): "
_KIND = re.compile(_KINDS)
_AFTER_FILE = re.compile(r" is in the manifest and| has \d+ bytes, the manifest| has sha256 ")
_CUT = re.compile(rf"((?:\A|; |also: ){_KINDS})(?!…).*", re.DOTALL)
_UNREADABLE = re.compile(r"(it could not be read \().*", re.DOTALL)


class DeliveryCheck(Struct, frozen=True, omit_defaults=True):
    """`path` is the file as the producer sees it, or the directory if the delivery as a whole is `incomplete`. `also`
    are the other problems of the delivery. `found_size` and `found_sha256` are those that the producer has found."""

    directory: str
    path: str
    size: int | None = None
    sha256: str = ""
    found_size: int | None = None
    found_sha256: str = ""
    incomplete: str = ""
    also: tuple[str, ...] = ()
    also_more: int = 0


def problem_of(check: DeliveryCheck, size: int | None, sha256: str) -> str:
    """What is wrong with the file, which has this size (None: it does not exist) and checksum; "" if nothing is."""
    if check.incomplete:
        return f"incomplete: {check.incomplete}"
    if size is None:
        return f"missing: {check.path} is in the manifest and does not exist"
    if check.size is not None and size != check.size:
        return f"wrong size: {check.path} has {size} bytes, the manifest says {check.size}"
    if check.sha256 and sha256 and sha256 != check.sha256:
        return f"wrong checksum: {check.path} has sha256 {sha256}, the manifest says {check.sha256}"
    return ""


def unreadable(path: str, why: str) -> str:
    """What is wrong with a file that exists and is not read, such as a link."""
    return f"missing: {path} is in the manifest and can't be read: {why}"


def with_others(problem: str, check: DeliveryCheck) -> str:
    if not check.also:
        return problem
    more = f" and {check.also_more} more" if check.also_more else ""
    return f"{problem}{_ALSO}{'; '.join(check.also)}{more}"


def without_files(error: str) -> str:
    """The error of a check with `…` in place of the files that it names; any other text as it is."""
    if error.startswith("incomplete: "):
        return _UNREADABLE.sub(r"\1…)", error)
    shown, place = [], 0
    while (kind := _KIND.search(error, place)) and (after := _AFTER_FILE.search(error, kind.end())):
        shown += [error[place : kind.end()], "…", after[0]]
        place = after.end()
    hidden = "".join(shown) + error[place:]
    return _CUT.sub(r"\1…", hidden) if _ALSO in error or len(error) >= _CUT_FROM else hidden


def naming_others(checks: list[tuple[DeliveryCheck, str]]) -> list[DeliveryCheck]:
    """Each check with the problems of the others: whichever job fails first, its error names them all."""
    texts = [problem for _, problem in checks]
    named = []
    for index, (check, _) in enumerate(checks):
        others = [text for place, text in enumerate(texts[: ALSO_MAX + 1]) if place != index][:ALSO_MAX]
        more = len(texts) - 1 - len(others)
        named.append(msgspec.structs.replace(check, also=tuple(others), also_more=more))
    return named
