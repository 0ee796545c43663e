"""Decides whether submit() of the thread executor waits until the batch it submitted has ended.

Waiting pays while tasks are tiny and costs time otherwise. After a batch that was not done in time the policy skips
some batches before it tries again, twice as many each time, up to a limit. Pure: no clock, no threads.
"""

from __future__ import annotations

MAX_SKIPS = 31  # the most batches that are skipped between two waits


class WaitPolicy:
    """Starts by waiting. Ask should_wait() once for each batch, and record() each wait."""

    def __init__(self) -> None:
        self._skips = 0
        self._skips_left = 0

    @property
    def is_cautious(self) -> bool:
        """Whether the last wait was too long: then a batch is waited for only if nothing else runs."""
        return self._skips > 0

    def should_wait(self) -> bool:
        if self._skips_left:
            self._skips_left -= 1
            return False
        return True

    def record(self, *, was_done_in_time: bool) -> None:
        self._skips = self._skips_left = 0 if was_done_in_time else min(2 * self._skips + 1, MAX_SKIPS)
