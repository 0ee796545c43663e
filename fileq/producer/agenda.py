"""What to scan next, and when. Plans only; the clock is given.

A whole scan can take long, and longer where the rate limit holds it back; directories that were heard of meanwhile
are scanned first, so that events don't wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_PARTS = 1000  # with more of them the whole is less work
NEVER = float("inf")


class Agenda:
    """The scans of one scan_dir: the whole again and again, and parts of it on top."""

    def __init__(self, root: bytes, *, rescan_s: float, poll_s: float) -> None:
        self._root = root
        self._rescan_s = rescan_s
        self._poll_s = poll_s
        self._parts: dict[bytes, None] = {}
        self._is_whole_wanted = True
        self._next_whole_s = NEVER
        self._next_poll_s = NEVER
        self._being_polled: set[bytes] = set()
        self._poll_took_s = 0.0

    @property
    def is_empty(self) -> bool:
        """Nothing is to be scanned right now."""
        return not self._is_whole_wanted and not self._parts

    @property
    def next_due_s(self) -> float:
        return min(self._next_whole_s, self._next_poll_s)

    def want(self, directory: bytes) -> None:
        self._parts[directory] = None
        if directory == self._root or len(self._parts) > MOST_PARTS:
            self._parts.clear()
            self.want_whole()

    def want_whole(self) -> None:
        self._is_whole_wanted = True

    def plan(self, now_s: float, polled: Sequence[bytes]) -> None:
        """What has become due since the last time; `polled` are the directories of which nobody tells."""
        if now_s >= self._next_whole_s:
            self._next_whole_s = NEVER
            self.want_whole()
        if now_s >= self._next_poll_s:
            self._next_poll_s, self._poll_took_s = NEVER, 0.0
            self._being_polled = set(polled)
            for directory in polled:
                self.want(directory)

    def take_part(self) -> bytes | None:
        """The one that has waited longest."""
        directory = next(iter(self._parts), None)
        if directory is not None:
            del self._parts[directory]
        return directory

    def take_whole(self) -> bool:
        is_wanted, self._is_whole_wanted = self._is_whole_wanted, False
        return is_wanted

    def finished(self, directory: bytes, now_s: float, took_s: float, polled: Sequence[bytes]) -> None:
        """A scan has ended; the next of its kind is due after its interval, a poll no sooner than twice its time."""
        if directory == self._root:
            self._next_whole_s = now_s + self._rescan_s
            self._being_polled = set(polled) & {self._root}
            self._poll_took_s = 0.0
        if directory in self._being_polled or directory == self._root:
            self._being_polled.discard(directory)
            self._poll_took_s += took_s
            if polled and not self._being_polled:
                self._next_poll_s = now_s + max(self._poll_s, 2 * self._poll_took_s)

    def failed(self, now_s: float, pause_s: float) -> None:
        """There was nothing to scan: try the whole again soon."""
        self._parts.clear()
        self._being_polled.clear()
        self._is_whole_wanted = False
        self._next_whole_s, self._next_poll_s = now_s + pause_s, NEVER
