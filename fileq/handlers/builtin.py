"""The built-in handlers that routes can `use`: `checksum`, the default for files, and `simulate`, for trying fileq out.

Commands are built in too, but no function stands for them: see command_handler.py.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from fileq.core.errors import Permanent
from fileq.handlers.context import Context, JobView

READ_SIZE = 1 << 20
SECONDS_PER_MEGABYTE = 0.01
_ORDER_IN_NAME = re.compile(r"(?:^|[^a-z0-9])(fail|permanent|hang)(?:-(\d+))?(?:[^a-z0-9]|$)")


def checksum(job: JobView, context: Context) -> dict[str, Any]:
    """The SHA-256 and the size of a file, which is read in blocks; stops between blocks when cancelled."""
    digest, size = hashlib.sha256(), 0
    with job.open("rb", buffering=0) as file:
        while block := file.read(READ_SIZE):
            if context.cancelled.is_set():
                raise InterruptedError("cancelled")
            digest.update(block)
            size += len(block)
    return {"sha256": digest.hexdigest(), "bytes": size}


def simulate(job: JobView, context: Context) -> dict[str, Any]:
    """Simulates work: sleeps 10 ms per megabyte, or the payload's `sleep` seconds. A word in the file's name or a key
    of the payload chooses the end: `fail` fails every attempt, `fail-2` (`{"fail": 2}`) the first two attempts,
    `permanent` fails permanently, `hang` runs until it is cancelled."""
    order, times, sleep_s = _order(job)
    if context.cancelled.wait(None if order == "hang" else sleep_s):
        raise InterruptedError("cancelled")
    if order == "permanent":
        raise Permanent("simulated a permanent failure")
    if order == "fail" and (times is None or context.attempt <= times):
        raise RuntimeError(f"simulated a failure, attempt {context.attempt}{f' of {times}' if times else ''}")
    return {"slept": sleep_s, "attempt": context.attempt}


def _order(job: JobView) -> tuple[str, int | None, float]:
    """How to end ("" is success), the number of attempts that fail (None is all), and the seconds to sleep first."""
    sleep_s = job.filesize / 1e6 * SECONDS_PER_MEGABYTE
    if job.payload is None:
        found = _ORDER_IN_NAME.search(job.filepath.rpartition("/")[2].lower())
        return (found[1], int(found[2]) if found[2] else None, sleep_s) if found else ("", None, sleep_s)
    if not isinstance(job.payload, dict):
        raise Permanent(f"the payload is {job.payload!r}; it must be an object such as {{'fail': 2}}")
    sleep_s = job.payload.get("sleep", sleep_s)
    if isinstance(sleep_s, bool) or not isinstance(sleep_s, int | float) or sleep_s < 0:
        raise Permanent(f"the payload's sleep is {sleep_s!r}; it must be a number of seconds")
    for order in ("hang", "permanent", "fail"):
        if wanted := job.payload.get(order):
            return order, wanted if type(wanted) is int else None, sleep_s
    return "", None, sleep_s
