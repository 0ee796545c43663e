"""Reads the states of jobs for all waits of a process together.

Threads that ask while another one reads are answered by one later call. So a hundred waits that ask at the same time
cost a few calls, not a hundred. Owns no thread and keeps no state: each answer was read after it was asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fileq.core.job import State

BATCH = 500  # jobs in one call


class _Request:
    """One call that several threads share."""

    def __init__(self) -> None:
        self.ids: dict[str, None] = {}
        self.found: dict[str, State | None] | None = None  # None until it was read
        self.error: Exception | None = None


class SharedReads:
    """`read` returns the states of jobs, None for a job without a record."""

    def __init__(self, read: Callable[[Sequence[str]], list[State | None]]) -> None:
        self._read = read
        self._collecting = threading.Lock()
        self._reading = threading.Lock()
        self._next = _Request()

    def states(self, ids: Sequence[str]) -> list[State | None]:
        """The state of each job; None without a record. Raises what the shared call raises."""
        with self._collecting:
            request = self._next
            request.ids.update(dict.fromkeys(ids))
        with self._reading:
            if request.found is None and request.error is None:
                with self._collecting:
                    self._next = _Request()  # a thread that asks from now on must get a later answer than this
                self._answer(request)
        if request.found is None:
            assert request.error is not None
            raise request.error
        return [request.found[id] for id in ids]

    def _answer(self, request: _Request) -> None:
        ids = list(request.ids)
        batches = (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
        try:
            request.found = {id: state for batch in batches for id, state in zip(batch, self._read(batch), strict=True)}
        except Exception as error:
            request.error = error
