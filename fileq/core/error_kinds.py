"""The kind of an error, found again from its text.

The hourly counters, and `fileq stats`, count failures and deaths by kind. Records keep the text only. For most errors
the text begins with the kind (`ValueError: …`); this module knows the texts of the others. Values only.
"""

from __future__ import annotations

import re

from fileq.core.outcome import CRASHED, WORKER_DIED

CRASH, WORKER_DEATH = "Crash", "WorkerDied"
DEATH_KINDS = frozenset({CRASH, WORKER_DEATH})  # counted as `recovered`, not as `failed`
_CRASHES = rf"{CRASHED}|" + (  # what follows it here are the texts of records that older workers wrote
    r"exited with status |killed by signal |the fork server |closed its connection to the worker"
    r"|wrote something that is no outcome|never began"
)
# Tried in this order; the first that matches from the start of the text decides.
_KINDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"timed out after "), "Timeout"),
    (re.compile(r"file vanished"), "FileVanished"),
    (re.compile(r"not a regular file"), "NotAFile"),
    (re.compile(r"deadline passed"), "DeadlinePassed"),
    (re.compile(r"not a job"), "Undecodable"),
    (re.compile(r"no handler for |commands in jobs are disabled|the job names neither "), "NoHandler"),
    (re.compile(r"refused: another program enqueued "), "ForeignJob"),
    (re.compile(r"['\"].* leads outside the allowed roots", re.DOTALL), "OutsideRoots"),
    (re.compile(r"used \d+MB of memory, more than worker\.max_memory"), "MemoryLimit"),
    (re.compile(re.escape(WORKER_DIED)), WORKER_DEATH),
    (re.compile(_CRASHES), CRASH),
    (re.compile(r"\S+ exited with (\d+)"), r"exit \1"),
    (re.compile(r"\S+ was killed by (signal \d+|\w+)"), r"\1"),
    (re.compile(r"([A-Za-z_]\w*)(?:: |$| \(at )"), r"\1"),
)


def kind_of(error: str) -> str:
    """The kind that `fileq stats` shows for this error; "" if its text has none."""
    for pattern, kind in _KINDS:
        if found := pattern.match(error):
            return found.expand(kind)
    return ""


def kind_of_death(cause: str) -> str:
    """The kind for an attempt whose process died: the child that ran the handler, or the whole worker."""
    return WORKER_DEATH if cause.startswith(WORKER_DIED) else CRASH
