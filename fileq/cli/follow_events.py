"""`fileq events`: follows the events that the broker publishes, also across its outages. Only reads.

Brokers publish `job:started` when a job is claimed. If the worker then finds that the job cannot run yet, it defers the
job a moment later; the same job may be claimed and deferred every second for an hour. Such a start is not shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from fileq.brokers.protocol import FullBroker
from fileq.cli.terminal import ENDLESS, columns, cut_inside, short_ids
from fileq.client.event_stream import AGAIN, LastingSubscription, PublishedBatchEvent, decode_event
from fileq.core.events import JobClaimed, JobDeferred
from fileq.core.job import rfc3339_ms
from fileq.core.text import broker_name, end_of_path, printable
from fileq.core.units import short_duration

GET_TIMEOUT_S = 1.0
HOLD_S = 0.5  # a worker needs some milliseconds from the claim of a job to its deferral
_DETAILS = ("duration", "failures")  # left out, in this order, if the name of the file and the error need the room
_ERROR_WIDTH = 40  # columns of the error that are shown rather than details and directories


class _Held(Struct, eq=False):
    event: bytes
    key: tuple[str, str]
    due_s: float
    is_hidden: bool = False


class EventFilter:
    """Passes events on in their order. A `job:started` waits for `hold_s`, unless another event says earlier how its
    job went on, and is left out if that is its deferral. With 0 every event is passed on at once."""

    def __init__(
        self, show: Callable[[bytes], None], hold_s: float, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show
        self._hold_s = hold_s
        self._monotonic = monotonic
        self._held: deque[_Held] = deque()
        self._starts: dict[tuple[str, str], _Held] = {}  # by job and slot

    def add(self, event: bytes) -> None:
        if not self._hold_s:
            self._show(event)
            return
        e = decode_event(event)
        held = _Held(event, (e.job_id, e.worker_id), 0.0)
        if (start := self._starts.pop(held.key, None)) is not None:
            start.due_s, start.is_hidden = 0.0, e.event == JobDeferred.published_as
        if e.event == JobClaimed.published_as:
            held.due_s = self._monotonic() + self._hold_s
            self._starts[held.key] = held
        self._held.append(held)
        self.show_due()

    def show_due(self) -> None:
        now_s = self._monotonic()
        while self._held and self._held[0].due_s <= now_s:
            self._pass_on(self._held.popleft())

    def show_all(self) -> None:
        while self._held:
            self._pass_on(self._held.popleft())

    def wait_s(self) -> float:
        """How long to wait for the next event before the next call of show_due()."""
        if not self._held:
            return GET_TIMEOUT_S
        return min(GET_TIMEOUT_S, max(0.0, self._held[0].due_s - self._monotonic()))

    def _pass_on(self, held: _Held) -> None:
        if self._starts.get(held.key) is held:
            del self._starts[held.key]
        if not held.is_hidden:
            self._show(held.event)


def follow(broker: FullBroker, events: EventFilter, report: Callable[[str], None]) -> None:
    """Shows every event from now on, for ever. `report` gets the begin and the end of each outage of the broker.

    A broker that is unreachable at the start is an error. Events published during an outage are not shown."""

    def report_outage(text: str) -> None:
        events.show_all()
        report(f"{text}; events published in the meantime were missed" if text == AGAIN else text)

    subscription = LastingSubscription(broker.subscribe, report_outage)
    try:
        report(f"following events on {broker_name(broker.kind)} at {broker.where}; press Ctrl-C to stop")
        while True:
            event = subscription.get(events.wait_s())
            if event is not None:
                events.add(event)
            else:
                events.show_due()
    finally:
        subscription.close()
        events.show_all()


def event_line(event: bytes, width: int = ENDLESS) -> str:
    """`18:51:50Z job:completed /data/a.pdf queue=low duration=3ms id=…`; the error or the reason comes last.

    A line of more than `width` columns loses the queue, then the first directories of the path, then the middle of the
    error: `fileq show` has them."""
    e = decode_event(event)
    moment = f"{rfc3339_ms(e.at)[11:19]}Z"
    if isinstance(e, PublishedBatchEvent):
        counts = ("total", "completed", "dead", "cancelled", "deleted")
        shown = {name: f"{name}={count}" for name in counts if (count := getattr(e, name))}
        return cut_inside(_joined(f"{moment} {printable(e.event):<13}", printable(e.batch_id), shown), width)
    fields = {
        "queue": e.priority,
        "duration": short_duration(e.duration_ms / 1000) if e.duration_ms else "",
        "failures": str(e.retry_count) if e.retry_count else "",
        "id": short_ids([e.job_id])[e.job_id],
        "reason" if e.event == JobDeferred.published_as else "error": e.error,
    }
    shown = {name: printable(f"{name}={value}") for name, value in fields.items() if value}
    head = f"{moment} {printable(e.event):<13}"
    name = " ".join(filter(None, (e.filepath, e.type)))
    line = _joined(head, printable(name), shown)
    return line if columns(line) <= width else _fitted(head, name, shown, width)


def _fitted(head: str, name: str, shown: dict[str, str], width: int) -> str:
    why = next((name for name in ("error", "reason") if name in shown), "")
    error = shown.pop(why, "")
    shortest, error_width = columns(printable(end_of_path(name, 0))), min(columns(error), _ERROR_WIDTH)
    shown.pop("queue", None)
    for detail in _DETAILS:
        if width - columns(_joined(head, " ", shown)) - 1 < shortest + error_width:
            shown.pop(detail, None)
    free = width - columns(_joined(head, "", shown)) - bool(name) - bool(error)
    room = max(min(shortest, free // 2), free - error_width)
    name = cut_inside(printable(end_of_path(name, room)), room)
    if error:
        shown[why] = cut_inside(error, free - columns(name))
    return _joined(head, name, shown)


def _joined(head: str, name: str, shown: dict[str, str]) -> str:
    return " ".join(filter(None, (head, name, *shown.values())))
