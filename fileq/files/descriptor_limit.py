"""How many descriptors this process may have open. Long-running roles raise their soft limit to the hard one.

Programs that this process starts for handlers get the limit that fileq was started with: select() fails with higher
numbers. `resource` is imported late, as children check more after each task once it is imported.
"""

from __future__ import annotations

import contextlib

HIGHEST = 1 << 20
_given: int | None = None  # the limit at the start, once it is raised


def soft_limit() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HIGHEST if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    global _given
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HIGHEST if hard == resource.RLIM_INFINITY else min(hard, HIGHEST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        _given = soft if _given is None else _given
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def restore_limit_of(pid: int) -> None:
    """For a program that this process has just started."""
    if _given is None:
        return
    import resource

    with contextlib.suppress(OSError):  # it has ended
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(_given, hard) if hard >= 0 else _given, hard))
