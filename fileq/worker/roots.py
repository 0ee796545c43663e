"""Checks whether the root directories of file jobs are there. The file jobs of a missing root are deferred; jobs of
other roots and jobs without a file run.

Each root is checked in a thread of its own: a check of a dead network mount may block for minutes. turn() compares the
results and reports what has changed; a loop of its own calls it.

What a kill -9 leaves: nothing. A new process checks at its start.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from fileq.core.events import Emit, ignore
from fileq.core.process_events import RootLost, RootRestored

CHECK_EVERY_S = 1.0
SILENT_AFTER_S = 10.0


class _Root:
    """The last check of one root."""

    def __init__(self, path: bytes, is_there: Callable[[bytes], bool]) -> None:
        self.path = path
        self._is_there = is_there
        self.check()

    def check(self) -> None:
        self.is_missing = not self._is_there(self.path)
        self.checked_s = time.monotonic()

    def problem(self) -> str:
        """Why its files cannot be reached; "" if they can."""
        name = os.fsdecode(self.path)
        if time.monotonic() - self.checked_s > SILENT_AFTER_S:
            return f"the root {name} does not answer"
        return f"the root {name} is missing (not mounted?)" if self.is_missing else ""


class RootsWatch:
    """`on_end` gets the reason for which jobs were deferred when a root is back."""

    name = "roots"

    def __init__(
        self,
        roots: Sequence[bytes],
        *,
        emit: Emit = ignore,
        on_end: Callable[[str], None] = lambda reason: None,
        is_there: Callable[[bytes], bool] = os.path.isdir,
    ) -> None:
        self._emit = emit
        self._on_end = on_end
        # The innermost root of a path comes first.
        self._roots = [_Root(path, is_there) for path in sorted(roots, key=len, reverse=True)]
        self._is_reporting = False  # the first turn reports what was missing at the start
        self._stop = threading.Event()
        self.problems: Mapping[bytes, str] = self._find_problems()  # root → why its files cannot be reached
        self.change_count = 0

    def start(self) -> None:
        for root in self._roots:
            threading.Thread(target=self._keep_checking, args=(root,), name="root", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def check(self) -> None:
        """Checks every root now. May block; the threads do it without being asked."""
        for root in self._roots:
            root.check()

    def turn(self) -> float:
        """Compares the last checks with those before. Returns the seconds until the next turn."""
        before = self.problems if self._is_reporting else {}
        self._is_reporting = True
        self.problems = after = self._find_problems()
        for root in (*before, *(root for root in after if root not in before)):
            if before.get(root) != after.get(root):
                self._changed(root, before.get(root), after.get(root))
        return CHECK_EVERY_S

    def obstacle(self, path: bytes) -> str | None:
        """Why the file at this path cannot be reached now: its root is missing. None if nothing is known against it."""
        for root in self._roots:
            if path.startswith(root.path.rstrip(b"/") + b"/"):
                return self.problems.get(root.path)
        return None

    def problem(self) -> str:
        """All problems as one text; "" while all roots are there."""
        return "; ".join(self.problems.values())

    def _find_problems(self) -> dict[bytes, str]:
        return {root.path: problem for root in self._roots if (problem := root.problem())}

    def _changed(self, root: bytes, before: str | None, after: str | None) -> None:
        self.change_count += 1
        if after is not None:
            self._emit(RootLost(os.fsdecode(root), after, "its file jobs wait; all others run"))
        else:
            self._emit(RootRestored(os.fsdecode(root)))
        if before is not None:
            self._on_end(before)

    def _keep_checking(self, root: _Root) -> None:
        while not self._stop.wait(CHECK_EVERY_S):
            root.check()
