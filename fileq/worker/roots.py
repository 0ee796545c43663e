"""Checks whether the root directories of file jobs can be accessed. The file jobs of a root that is missing, or that
this user has no permission on, are deferred; jobs of other roots and jobs without a file run.

A folder that files are moved to after their job is a root too: a retried job finds its file there. It may be missing
for a good reason, because no file was moved yet. The same holds for the default root of a worker whose configuration
names no directory: it may run only jobs without files. Such a root counts as missing only when a job needs it.

Each root is checked in a thread of its own: a check of a dead network mount may block for minutes. turn() compares the
results and reports what has changed; a loop of its own calls it. Between two checks a run may find its root missing:
the pump reports that by note_lost(), and it counts until the next check.

What a kill -9 leaves: nothing. A new process checks at its start.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from fileq.core.events import Emit, RootLost, RootRestored, ignore
from fileq.core.outcome import LostRoot
from fileq.files.paths import MISSING, NOT_A_DIRECTORY, directory_problem

CHECK_EVERY_S = 1.0
SILENT_AFTER_S = 10.0


class _Root:
    """The last check of one root. `is_needed`: its absence is a problem."""

    def __init__(self, path: bytes, look: Callable[[bytes], str], *, is_folder: bool, is_expected: bool) -> None:
        self.path = path
        self.is_needed = self._is_expected = is_expected
        self._is_folder = is_folder
        self._look = look
        self.check()

    def check(self) -> None:
        self._found = self._look(self.path)
        self.checked_s = time.monotonic()
        if not self._found:
            self.is_needed = self._is_expected  # if not, until a job misses it again

    def note_lost(self, found: str) -> None:
        self._found = found
        self.is_needed = True

    @property
    def is_missing(self) -> bool:
        return bool(self._found)

    def problem(self) -> str:
        """Why its files cannot be reached; "" if they can, or if no job needs them."""
        name = os.fsdecode(self.path)
        if not self.is_needed:
            return ""
        if time.monotonic() - self.checked_s > SILENT_AFTER_S:
            return f"the root {name} does not answer"
        if not self._found:
            return ""
        what = f"the folder {name}, where files were moved to," if self._is_folder else f"the root {name}"
        return f"{what} {'is missing (not mounted?)' if self._found in (MISSING, NOT_A_DIRECTORY) else self._found}"


class RootsWatch:
    """`folders` are those that files are moved to. `on_end` gets the reason for which jobs were deferred when a root is
    back. Unless roots `are_expected`, one is missing only when a job needs it."""

    name = "roots"

    def __init__(
        self,
        roots: Sequence[bytes],
        folders: Sequence[bytes] = (),
        *,
        emit: Emit = ignore,
        on_end: Callable[[str], None] = lambda reason: None,
        are_expected: bool = True,
        look: Callable[[bytes], str] = directory_problem,
    ) -> None:
        self._emit = emit
        self._on_end = on_end
        # The innermost root of a path comes first.
        kinds = {**dict.fromkeys(folders, True), **dict.fromkeys(roots, False)}
        by_length = sorted(kinds.items(), key=lambda kind: len(kind[0]), reverse=True)
        self._roots = [
            _Root(path, look, is_folder=is_folder, is_expected=are_expected and not is_folder)
            for path, is_folder in by_length
        ]
        self._unexpected = [root for root in self._roots if not root.is_needed]
        self._reported: Mapping[bytes, str] = {}
        self._reporting = threading.Lock()
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
        with self._reporting:
            before = self._reported
            self.problems = self._reported = after = self._find_problems()
            for root in (*before, *(root for root in after if root not in before)):
                if before.get(root) != after.get(root):
                    self._changed(root, before.get(root), after.get(root))
        return CHECK_EVERY_S

    def note_lost(self, lost: LostRoot) -> str | None:
        """A run has found that this root cannot be accessed, and why. Returns the problem that its jobs wait for; None
        if a check has found the root again meanwhile. Reads no file: that may block."""
        for root in self._roots:
            if root.path == lost.root:
                root.note_lost(lost.reason)
        self.turn()  # reported before jobs are deferred for it: only what was reported ends, and releases them
        return self.problems.get(lost.root)

    @property
    def is_any_missing(self) -> bool:
        """Whether a file may have a problem: cheap, for every job."""
        return bool(self.problems) or any(root.is_missing for root in self._unexpected)

    def problem_of(self, path: bytes) -> str | None:
        """Why the file at this path cannot be reached now: its root is missing. None if nothing is known against it."""
        for root in self._roots:
            if path.startswith(root.path.rstrip(b"/") + b"/"):
                if root.is_missing and not root.is_needed:
                    root.is_needed = True
                    self.problems = self._find_problems()
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
