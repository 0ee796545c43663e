"""Watches the directories that a scan enters, as far as their events can be trusted. Requests no scans.

Owns the DirectoryWatcher. When the kernel has no more watches, it closes the watcher, reports that once, and everything
is polled from then on.
"""

from __future__ import annotations

import threading

from fileq.core.events import Emit
from fileq.core.file_events import WatchEventsLost, WatchFailed
from fileq.producer.finder.inotify import DirectoryWatcher, WatchEvents, no_events
from fileq.producer.finder.watch_modes import WatchModes

OVERFLOW_REPORT_S = 60.0  # an overflow is reported at most this often


class TreeWatch:
    """`wake` is set when there are new events. `is_enabled`: False for a producer that scans once."""

    def __init__(self, modes: WatchModes, *, emit: Emit, is_enabled: bool) -> None:
        self.wake = threading.Event()
        self._modes = modes
        self._emit = emit
        self._is_enabled = is_enabled
        self._watcher: DirectoryWatcher | None = None
        self._has_failed = False
        self._overflow_reported_s = float("-inf")
        self.start()

    def start(self) -> None:
        """Starts with no directory watched. Does nothing where no directory has events that can be trusted."""
        if not self._is_enabled or self._modes.is_event_free:
            return
        try:
            self._watcher = DirectoryWatcher(self.wake)
        except OSError as error:
            self._report_failure(error)

    def close(self) -> None:
        """Ends all watches. `start` begins anew."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def watch(self, directory: bytes) -> None:
        """Called before a directory is listed."""
        if self._watcher is None or self._modes.is_polled(directory):
            return
        try:
            self._watcher.watch(directory)
        except OSError as error:
            self.close()
            self._has_failed = True
            self._report_failure(error)

    def take_events(self, now_s: float) -> WatchEvents:
        if self._watcher is None:
            return no_events()
        events = self._watcher.take_events()
        if events.is_overflown and now_s - self._overflow_reported_s >= OVERFLOW_REPORT_S:
            self._overflow_reported_s = now_s
            self._emit(WatchEventsLost("scanning everything"))
        return events

    def take_failure(self) -> bool:
        """Whether a watch was refused since the last call: what was watched until then needs a scan."""
        has_failed, self._has_failed = self._has_failed, False
        return has_failed

    def _report_failure(self, error: OSError) -> None:
        self._emit(WatchFailed(str(error.strerror), "polling instead"))
        self._modes.poll_everything()
