"""The one subscription of a server to the broker's events, in a thread of its own.

It is opened again after an outage; a `reset` event then says that events are missing. The thread hands events over in a
bounded queue: if the event loop is late, the oldest are dropped, and their numbers are missing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import msgspec
from msgspec import Struct

from fileq.brokers.notifications import Subscription
from fileq.core.errors import BrokerError
from fileq.core.events import Emit, LoopFailed
from fileq.server.event_ring import FIRST, RESET, RING_EVENTS, LiveEvent
from fileq.server.hidden_paths import without_paths

SLICE_S = 0.5  # how long one wait for an event lasts, so that a stop is noticed
RETRY_S = 0.5
MISSED = b'{"reason":"the broker was away; events may be missing"}'


class _Published(Struct, frozen=True):
    """What filters need of an event. Another program may have published it, so all but its name may be missing."""

    event: str
    job_id: str = ""
    type: str | None = None
    priority: str = ""
    filepath: str = ""


_decode = msgspec.json.Decoder(_Published).decode


class EventReader:
    """`changed` is called in the thread: after the first event since take(), and when `is_connected` changes."""

    def __init__(
        self, subscribe: Callable[[], Subscription], changed: Callable[[], None], *, hides_paths: bool, emit: Emit
    ) -> None:
        self._subscribe = subscribe
        self._changed = changed
        self._hides_paths = hides_paths
        self._emit = emit
        self._pending: deque[LiveEvent] = deque(maxlen=RING_EVENTS)
        self._is_reported = False
        self._number = 0
        self._closed = threading.Event()
        self.is_connected = False
        self._thread = threading.Thread(target=self._run, name="live events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """The subscription ends within SLICE_S. Does not wait for that."""
        self._closed.set()

    def take(self) -> list[LiveEvent]:
        """The events since the last call. In the thread of the event loop."""
        self._is_reported = False  # before the events are taken, so that none waits unreported
        taken = []
        while self._pending:
            taken.append(self._pending.popleft())
        return taken

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._read()
            except BrokerError:
                self._set_connected(False)
            except Exception as error:
                self._set_connected(False)
                self._emit(LoopFailed("live events", repr(error), error))
            self._closed.wait(RETRY_S)

    def _read(self) -> None:
        subscription = self._subscribe()
        try:
            if self._number:
                self._put(LiveEvent(self._number, RESET, MISSED))
            else:
                self._number = FIRST
            self._set_connected(True)
            while not self._closed.is_set():
                raw = subscription.get(SLICE_S)
                if raw is not None and (event := self._read_event(raw)) is not None:
                    self._put(event)
        finally:
            subscription.close()

    def _read_event(self, raw: bytes) -> LiveEvent | None:
        """None for what is no event: any program can publish on the channel."""
        try:
            known = _decode(raw)
            data = msgspec.json.encode(without_paths(msgspec.json.decode(raw))) if self._hides_paths else raw
            data.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if b"\n" in data or b"\r" in data:  # only between the parts of the JSON: in texts they are escaped
            data = data.replace(b"\r", b" ").replace(b"\n", b" ")
        name = known.event.replace(":", ".")
        if not name.startswith("job.") or not name.isprintable():
            return None
        return LiveEvent(self._number, name, data, known.job_id, known.type, known.priority, known.filepath)

    def _put(self, event: LiveEvent) -> None:
        self._pending.append(event)
        self._number += 1
        if not self._is_reported:
            self._is_reported = True
            self._changed()

    def _set_connected(self, is_connected: bool) -> None:
        if is_connected is not self.is_connected:
            self.is_connected = is_connected
            self._changed()
