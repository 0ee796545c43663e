"""Plans which directory is scanned next, and when. Does no I/O and reads no clock: the caller passes the time.

The whole scan_dir is scanned again and again. A whole scan can take long, and longer under a rate limit. Directories
that events name are parts, and come first, so that new files do not wait for the end of a whole scan.
"""

from __future__ import annotations

from collections.abc import Sequence

PARTS_MAX = 1000  # with more parts one whole scan is less work
NEVER = float("inf")


class ScanSchedule:
    """The scans of one scan_dir: the whole after every interval, and parts of it in between."""

    def __init__(self, root: bytes, *, rescan_s: float, poll_s: float) -> None:
        self._root = root
        self._rescan_s = rescan_s
        self._poll_s = poll_s
        self._parts: dict[bytes, None] = {}
        self._is_whole_requested = True
        self._next_whole_s = NEVER
        self._next_poll_s = NEVER
        self._being_polled: set[bytes] = set()
        self._poll_took_s = 0.0

    @property
    def is_empty(self) -> bool:
        """Nothing is to be scanned right now."""
        return not self._is_whole_requested and not self._parts

    @property
    def next_due_s(self) -> float:
        return min(self._next_whole_s, self._next_poll_s)

    def request(self, directory: bytes) -> None:
        self._parts[directory] = None
        if directory == self._root or len(self._parts) > PARTS_MAX:
            self._parts.clear()
            self.request_whole()

    def request_whole(self) -> None:
        self._is_whole_requested = True

    def advance(self, now_s: float, polled: Sequence[bytes]) -> None:
        """Requests the scans that have become due. `polled` are the directories without events."""
        if now_s >= self._next_whole_s:
            self._next_whole_s = NEVER
            self.request_whole()
        if now_s >= self._next_poll_s:
            self._next_poll_s, self._poll_took_s = NEVER, 0.0
            self._being_polled = set(polled)
            for directory in polled:
                self.request(directory)

    def take_part(self) -> bytes | None:
        """The part that was requested first."""
        directory = next(iter(self._parts), None)
        if directory is not None:
            del self._parts[directory]
        return directory

    def take_whole(self) -> bool:
        is_requested, self._is_whole_requested = self._is_whole_requested, False
        return is_requested

    def finish(self, directory: bytes, now_s: float, took_s: float, polled: Sequence[bytes]) -> None:
        """A scan ended. The next one of its kind is due after its interval.

        A poll waits at least twice as long as the last one took, so that polling never takes all the time."""
        if directory == self._root:
            self._next_whole_s = now_s + self._rescan_s
            self._being_polled = set(polled) & {self._root}
            self._poll_took_s = 0.0
        if directory in self._being_polled or directory == self._root:
            self._being_polled.discard(directory)
            self._poll_took_s += took_s
            if polled and not self._being_polled:
                self._next_poll_s = now_s + max(self._poll_s, 2 * self._poll_took_s)

    def fail(self, now_s: float, pause_s: float) -> None:
        """scan_dir could not be read: the whole is due again after a short pause."""
        self._parts.clear()
        self._being_polled.clear()
        self._is_whole_requested = False
        self._next_whole_s, self._next_poll_s = now_s + pause_s, NEVER
