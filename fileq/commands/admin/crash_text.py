"""What `fileq show` says of a job whose process died: how often, what follows from it, and what may be the cause."""

from __future__ import annotations

from fileq.core.outcome import CRASH, kind_of
from fileq.queries.job_summary import JobHistory

# A part of the error → what it means. The first that is found is shown.
_HINTS = (
    ("exited with status", "by os._exit() or a native library; an exception or sys.exit() would be a failed attempt"),
    ("signal SIGKILL", "from outside: by the kernel if the machine ran out of memory (see dmesg), or by a person"),
    ("signal SIGTERM", "from outside, or by the handler itself"),
    ("signal SIG", "such as a defect in a native library"),
)


def deaths_text(history: JobHistory) -> str:
    """How often the process that ran the job died, and what fileq does then; "" if it never did."""
    job = history.job
    if not job.recoveries:
        return ""
    is_last = bool(history.attempts) and history.attempts[-1].outcome == "died"
    if job.state == "dead" and is_last:
        return f"{job.recoveries}, more than worker.max_recoveries allows"
    return f"{job.recoveries}; with more than worker.max_recoveries it would be dead"


def crash_hint(error: str) -> list[str]:
    """What may have ended the process of the handler; nothing for other errors."""
    if kind_of(error) != CRASH:
        return []
    return next(([f"({hint})"] for part, hint in _HINTS if part in error), [])
