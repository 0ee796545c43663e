"""All open streams of events of one server: what each gets next, and when a stream must end.

Streams get events in turns. In a turn a stream gets one chunk, and streams with equal filters at the same place share
it. Turns are rarer the more streams there are, and chunks are bounded, so that streams together never take more than
about SENT_BYTES_S and SENDS_S from the machine that runs workers too. A stream that can't follow loses the oldest
events, and is told how many (`lag`). No stream has a queue of its own, so none makes the process grow.

EventReader takes the events from the broker, EventRing keeps the newest, EventsQuery chooses those of a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fileq.brokers.protocol import FullBroker, Subscription
from fileq.client.event_stream import NAMES
from fileq.core.errors import BrokerError
from fileq.core.events import Emit
from fileq.core.job import decode_or_none
from fileq.queries.job_filter import path_matcher
from fileq.runtime.service import Loop, without_outages
from fileq.server.authentication import Authentication, Caller
from fileq.server.hidden_paths import without_paths
from fileq.server.limits import BrokerPool, Share
from fileq.server.problems import ApiProblem, FieldProblem, broker_away, glob_problems, invalid

STREAMS_MAX = 1_000
STREAMS_OF_ONE = 250  # of one caller
SENT_BYTES_S = 16 << 20  # of all streams together
SENDS_S = 400
TURN_S = 0.05
FOLLOWED_S = 0.005  # how often a follower gets events at most; each time costs the event loop a wake-up
CHUNK_BYTES = 128 << 10
CHUNK_TEXTS = 200  # of a WebSocket, where each event is a frame
LOOKED_AT_S = 100_000  # events that filters look at
TICK_S = 1.0
KEEP_ALIVE_S = 15.0
CHECK_S = 2.0  # together with the cache of keys, a revoked key ends its streams within 5 s
LINGER_S = 15.0  # without a stream, the subscription is kept for so long, for clients that come back
CONNECT_S = 0.9
END_S = 1.0  # at a stop, clients that do not read are disconnected after it


class LiveStream(Struct, eq=False):
    """One client. `position` is the number of its next event; `abort` disconnects it at once."""

    filter: EventsQuery
    caller: Caller
    mark: str
    position: int
    abort: Callable[[], None]
    is_socket: bool = False
    is_ended: bool = False
    turn: int = -1  # in which it got its last chunk
    due_s: float = 0.0  # of the next tick


class Chunk(Struct, frozen=True):
    """What a stream sends next, and where it continues."""

    body: bytes
    texts: tuple[str, ...]
    position: int


class EventHub:
    """Belongs to the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: FullBroker,
        pool: BrokerPool,
        authentication: Authentication,
        *,
        hides_paths: bool,
        emit: Emit,
    ) -> None:
        self._loop = loop
        self._broker = broker
        self._pool = pool
        self._authentication = authentication
        self._hides_paths = hides_paths
        self._emit = emit
        self._ring = EventRing()
        self._reader: EventReader | None = None
        self._reading: Loop | None = None
        self._connected = asyncio.Event()
        self._streams: set[LiveStream] = set()
        self._share = Share("streams of events", STREAMS_MAX, STREAMS_OF_ONE, retry_after_s=10)
        self._named_from = 0  # the number of the first event that has its batch
        self._chunks: dict[tuple[EventsQuery, bool, int], Chunk] = {}
        self._wake: asyncio.Future[None] = self._loop.create_future()
        self._turn = 0
        self._turned_s = 0.0
        self._next_turn: asyncio.TimerHandle | None = None
        self._follower: Callable[[LiveEvent], None] | None = None
        self._taken_s = 0.0
        self._next_take: asyncio.TimerHandle | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._idle_since_s = 0.0
        self._is_closed = False

    async def open(
        self, filter: EventsQuery, caller: Caller, abort: Callable[[], None], *, is_socket: bool
    ) -> LiveStream:
        """A stream of the events from now on, for a checked query. The caller must leave() it. Raises ApiProblem."""
        if self._is_closed:
            raise ApiProblem("stopping", "the server is stopping", retry_after_s=1)
        self._share.take(caller.id)
        try:
            await self._connect()
        except BaseException:
            self._share.give_back(caller.id)
            raise
        self._take_events()
        if filter.batch is not None and self._reader is not None and not self._reader.names_batches:
            self._reader.names_batches, self._named_from = True, self._ring.head
        mark = self._authentication.mark_of(caller)
        stream = LiveStream(filter, caller, mark, self._ring.head, abort, is_socket=is_socket)
        self._streams.add(stream)
        self._watch()
        return stream

    async def _connect(self) -> None:
        self._idle_since_s = self._loop.time()
        if self._reader is None:
            self._start_reader()
        try:
            await asyncio.wait_for(self._connected.wait(), CONNECT_S)
        except TimeoutError:
            self._watch()
            raise broker_away("events can't be followed: the broker does not answer") from None

    def leave(self, stream: LiveStream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)
            self._share.give_back(stream.caller.id)
        self._idle_since_s = self._loop.time()

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def follow(self, follower: Callable[[LiveEvent], None]) -> None:
        """Opens the subscription, without waiting for it, and keeps it until unfollow(). The follower gets every event,
        in the event loop; RESET also whenever events may be missed from now on, see is_connected."""
        self._follower = follower
        if self._reader is None and not self._is_closed:
            self._start_reader()
        self._watch()

    def unfollow(self) -> None:
        self._follower = None
        self._idle_since_s = self._loop.time()

    def resume(self, stream: LiveStream, last_id: str) -> bytes:
        """The first frame of a stream. With the id of an event the stream continues after it, or is told that it
        can't (`reset`)."""
        first = b"retry: 2000\n"
        position = self._ring.position_after(last_id) if last_id else None
        if position is not None and stream.filter.batch is not None and position < self._named_from:
            position = None
        if position is not None:
            stream.position = position
        here = self._ring.id_of(stream.position - 1)
        if last_id and position is None:
            return first + sse_frame("reset", b'{"reason":"the events after Last-Event-ID are not here"}', here)
        return first + f"id: {here}\n\n".encode()

    async def next_chunk(self, stream: LiveStream) -> Chunk | None:
        """What the stream sends next; without content, it is to keep the connection alive. None: the stream ends."""
        until_s = self._loop.time() + KEEP_ALIVE_S
        while not (stream.is_ended or self._is_closed):
            now_s = self._loop.time()
            wait_s = until_s - now_s
            if stream.position < self._ring.head:
                if stream.due_s > now_s:
                    wait_s = min(wait_s, stream.due_s - now_s)
                elif stream.turn != self._turn:
                    chunk = self._read(stream)
                    if chunk.body or chunk.texts:
                        return chunk
                    continue
                else:
                    self._schedule()
            if now_s >= until_s:
                return Chunk(f": \nid: {self._ring.id_of(stream.position - 1)}\n\n".encode(), (), stream.position)
            # Not wait_for(): in Python 3.11 it may ignore that the stream was cancelled, if a turn begins just then.
            await asyncio.wait([self._wake], timeout=wait_s)
        return None

    def close(self) -> None:
        """Ends all streams. A client that does not read is disconnected after END_S."""
        self._is_closed = True
        self._turn_now()
        if self._reading is not None:
            self._reading.quiet()
        if self._watch_task is not None:
            self._watch_task.cancel()
        self._loop.call_later(END_S, self._abort_all)

    def _abort_all(self) -> None:
        for stream in list(self._streams):
            stream.abort()

    # turns

    @property
    def _turn_every_s(self) -> float:
        return max(TURN_S, len(self._streams) / SENDS_S)

    def _schedule(self) -> None:
        if self._next_turn is None and not self._is_closed:
            wait_s = self._turned_s + self._turn_every_s - self._loop.time()
            self._next_turn = self._loop.call_later(max(0.0, wait_s), self._turn_now)

    def _turn_now(self) -> None:
        self._next_turn = None
        self._turned_s = self._loop.time()
        self._turn += 1
        self._take_events()
        self._chunks.clear()
        wake, self._wake = self._wake, self._loop.create_future()
        wake.set_result(None)

    def _take_events(self) -> None:
        if self._reader is not None:
            for event in self._reader.take():
                self._ring.add(event)
                if self._follower is not None:
                    self._follower(event)

    def _take_for_follower(self) -> None:
        self._next_take = None
        self._taken_s = self._loop.time()
        self._take_events()

    def _read(self, stream: LiveStream) -> Chunk:
        stream.turn = self._turn
        if stream.filter.is_ticks:
            stream.due_s = self._loop.time() + TICK_S
        key = (stream.filter, stream.is_socket, stream.position)
        chunk = self._chunks.get(key)
        if chunk is None:
            chunk = self._chunks[key] = self._made(stream)
        stream.position = chunk.position
        return chunk

    def _made(self, stream: LiveStream) -> Chunk:
        ring, start = self._ring, max(stream.position, self._ring.oldest)
        dropped = start - stream.position
        events, end = self._wanted(stream, start)
        last = ring.id_of(end - 1)
        if stream.filter.is_ticks:
            tick = tick_of(events, dropped)
            found = [("tick", msgspec.json.encode(tick), last)] if tick is not None else []
        else:
            lag = [("lag", b'{"dropped":%d}' % dropped, ring.id_of(start - 1))] if dropped else []
            found = [*lag, *((event.name, event.data, ring.id_of(event.number)) for event in events)]
        if stream.is_socket:
            return Chunk(b"", tuple(text_frame(name, data) for name, data, _ in found), end)
        return Chunk(b"".join([sse_frame(*one) for one in found]), (), end)

    def _wanted(self, stream: LiveStream, start: int) -> tuple[list[LiveEvent], int]:
        """The next events for the stream, as many as it may have in this turn, and where they end."""
        ring, filter = self._ring, stream.filter
        share = SENT_BYTES_S * self._turn_every_s / max(1, len(self._streams))
        room = int(max(4096, min(CHUNK_BYTES, share)))
        end = ring.head
        if not filter.is_open:
            filters = len({one.filter for one in self._streams})
            end = min(end, start + max(200, int(LOOKED_AT_S * self._turn_every_s / max(1, filters))))
        events: list[LiveEvent] = []
        for number in range(start, end):
            event = ring.events[number]
            if filter.is_open or filter.wants(event):
                events.append(event)
                room -= len(event.data) + 64
                is_full = room <= 0 or (stream.is_socket and len(events) >= CHUNK_TEXTS)
                if is_full and not stream.filter.is_ticks:
                    return events, number + 1
        return events, end

    # the subscription, and streams that must end

    def _start_reader(self) -> None:
        self._ring = EventRing()
        self._connected.clear()
        self._reader = EventReader(self._broker, self._report_change, hides_paths=self._hides_paths)
        self._reading = Loop(self._reader, emit=without_outages(self._emit), longest_pause_s=RETRY_S)
        self._reading.start()

    def _report_change(self) -> None:
        """In the thread of the reader."""
        if not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed in this moment
                self._loop.call_soon_threadsafe(self._changed)

    def _changed(self) -> None:
        was_connected = self._connected.is_set()
        if self._reader is not None and self._reader.is_connected:
            self._connected.set()
        else:
            self._connected.clear()
        if self._follower is not None:
            if self._connected.is_set() is not was_connected:
                self._follower(LiveEvent(0, RESET, MISSED))
            if self._next_take is None:
                wait_s = self._taken_s + FOLLOWED_S - self._loop.time()
                self._next_take = self._loop.call_later(max(0.0, wait_s), self._take_for_follower)
        self._schedule()

    def _watch(self) -> None:
        if (self._watch_task is None or self._watch_task.done()) and not self._is_closed:
            self._idle_since_s = self._loop.time()
            self._watch_task = asyncio.create_task(self._watch_streams())

    async def _watch_streams(self) -> None:
        while self._streams or self._follower or self._loop.time() - self._idle_since_s < LINGER_S:
            await asyncio.sleep(CHECK_S)
            for stream in list(self._streams):
                if not await self._authentication.is_accepted(stream.caller, stream.mark):
                    stream.is_ended = True
                    self._schedule()
        if self._reading is not None:
            self._reading.quiet()
            self._reader = self._reading = None
            self._connected.clear()


SLICE_S = 0.5  # how long one wait for an event lasts, so that a stop is noticed
RETRY_S = 0.5
READ_AT_ONCE = 20  # jobs, to know their batches: the records have the payloads too
BATCHES_KEPT = 20_000
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
    """The one subscription of a server to the broker's events, in a loop of its own.

    It is opened again after an outage; a `reset` event then says that events are missing. The thread hands events over
    in a bounded queue: if the event loop is late, the oldest are dropped, and their numbers are missing.

    An event does not say the batch of its job. From when a stream first wants to know it (`names_batches`), the thread
    reads the jobs of new events, those that have come meanwhile together.

    A stop ends the subscription within SLICE_S. `changed` is called in the thread: after the first event since take(),
    and when `is_connected` changes."""

    name = "live events"

    def __init__(self, broker: FullBroker, changed: Callable[[], None], *, hides_paths: bool) -> None:
        self._broker = broker
        self._subscription: Subscription | None = None
        self._changed = changed
        self._hides_paths = hides_paths
        self._pending: deque[LiveEvent] = deque(maxlen=RING_EVENTS)
        self._is_reported = False
        self._number = 0
        self._batches: dict[str, str] = {}
        self.names_batches = False
        self.is_connected = False

    def take(self) -> list[LiveEvent]:
        """The events since the last call. In the thread of the event loop."""
        self._is_reported = False  # before the events are taken, so that none waits unreported
        taken = []
        while self._pending:
            taken.append(self._pending.popleft())
        return taken

    def turn(self) -> float:
        try:
            if self._subscription is None:
                self._subscription = self._broker.subscribe()
                if self._number:
                    self._put(LiveEvent(0, RESET, MISSED))
                else:
                    self._number = FIRST
                self._set_connected(True)
            for event in self._with_batches([*self._next_events(self._subscription)]):
                self._put(event)
        except Exception:
            self._set_connected(False)
            self.at_end()
            raise
        return 0.0

    def at_end(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(BrokerError):
                subscription.close()

    def _next_events(self, subscription: Subscription) -> Iterator[LiveEvent]:
        """One, or as many as are there and whose jobs are read together."""
        wait_s = SLICE_S
        for _ in range(READ_AT_ONCE if self.names_batches else 1):
            if (raw := subscription.get(wait_s)) is None:
                return
            if (event := self._read_event(raw)) is not None:
                yield event
            wait_s = 0.0

    def _with_batches(self, events: list[LiveEvent]) -> list[LiveEvent]:
        """An outage leaves them unknown: `reset` follows."""
        if not self.names_batches:
            return events
        if len(self._batches) >= BATCHES_KEPT:
            self._batches.clear()
        if ids := [*{event.job_id for event in events} - self._batches.keys() - {""}]:
            for id, record in zip(ids, self._broker.records(ids), strict=True):
                job = decode_or_none(record.raw) if record is not None else None
                self._batches[id] = (job.batch_id or "") if job is not None else ""
        return [replace(event, batch=self._batches.get(event.job_id, "")) for event in events]

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
        return LiveEvent(0, name, data, known.job_id, known.type, known.priority, known.filepath)

    def _put(self, event: LiveEvent) -> None:
        self._pending.append(replace(event, number=self._number))
        self._number += 1
        if not self._is_reported:
            self._is_reported = True
            self._changed()

    def _set_connected(self, is_connected: bool) -> None:
        if is_connected is not self.is_connected:
            self.is_connected = is_connected
            self._changed()


RING_EVENTS = 10_000
RING_BYTES = 32 << 20
RESET = "reset"
FIRST = 1  # so that the id before the first event is a number too
_EVENT_ID = re.compile(r"([0-9a-f]{8})-([0-9]{1,18})")


class LiveEvent(Struct, frozen=True):
    """One event of the broker. `name` is with a dot, such as job.completed; `data` is its JSON in one line.

    The name `reset` stands for events that may be missing, and goes to every stream."""

    number: int
    name: str
    data: bytes
    job_id: str = ""
    type: str | None = None
    queue: str = ""
    path: str = ""
    batch: str = ""  # "" if no stream has wanted to know it


class EventRing:
    """The newest events of a server, by their numbers. A stream holds only the number of its next event.

    So a stream that does not read costs no memory: what it has not read when the ring is full is dropped for it, and
    the numbers say how many events that were. Belongs to the event loop; does no I/O.

    `events` are those from `oldest` up to, but not including, `head`. `mark` tells the rings of two servers apart."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(4)
        self.oldest = self.head = FIRST
        self._bytes = 0
        self.events: dict[int, LiveEvent] = {}

    def add(self, event: LiveEvent) -> None:
        """Numbers only grow. A gap means that events were lost before they got here: all before it are dropped."""
        while self.oldest < self.head and (
            event.number != self.head
            or self.head - self.oldest >= RING_EVENTS
            or self._bytes + len(event.data) > RING_BYTES
        ):
            self._bytes -= len(self.events.pop(self.oldest).data)
            self.oldest += 1
        if event.number != self.head:
            self.oldest = event.number
        self.events[event.number] = event
        self._bytes += len(event.data)
        self.head = event.number + 1

    def id_of(self, number: int) -> str:
        """The id of an event for Last-Event-ID."""
        return f"{self.mark}-{number}"

    def position_after(self, id: str) -> int | None:
        """The number after the event with this id; None if events after it are no longer here."""
        found = _EVENT_ID.fullmatch(id)
        if found is None or found[1] != self.mark:
            return None
        number = int(found[2]) + 1
        return number if self.oldest <= number <= self.head else None


# Which events a stream wants, and the frames it gets: Server-Sent Events, WebSocket texts, ticks. Does no I/O.

DEAD = "job.dead"
LIVE_NAMES = tuple(name.replace(":", ".") for name in NAMES)
Text = Annotated[str, Meta(min_length=1, max_length=200)]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`events` are names or globs, such as job.dead; `match` is a glob of paths, as for lists of jobs. `batch` needs
    the records of jobs, so it is slower. With the mode `ticks` at most one frame a second says what changed."""

    # Compared and hashed by its values: streams with equal filters share their frames.

    events: tuple[Text, ...] = ()
    type: Text | None = None
    match: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    batch: Text | None = None
    mode: Literal["events", "ticks"] = "events"

    @property
    def is_ticks(self) -> bool:
        return self.mode == "ticks"

    @property
    def is_open(self) -> bool:
        """Whether every event is wanted."""
        return not (self.events or self.type or self.match or self.batch)

    def wants(self, event: LiveEvent) -> bool:
        """Of a query that was checked."""
        if event.name == RESET:
            return True
        return (
            (not self.events or event.name in self.events)
            and (self.type is None or event.type == self.type)
            and (self.match is None or (event.path != "" and _matches(self.match, event.path)))
            and (self.batch is None or event.batch == self.batch)
        )


_matcher = lru_cache(maxsize=1024)(path_matcher)


def _matches(match: str, path: str) -> bool:
    return _matcher(match)(path.encode(errors="surrogateescape"))


def checked_query(query: EventsQuery, *, hides_paths: bool) -> EventsQuery:
    """With the names of events in place of globs. Raises ApiProblem for a name that no event has, for a glob that can't
    be read, or for one of hidden paths."""
    names: set[str] = set()
    problems = []
    for text in query.events:
        found = [name for name in LIVE_NAMES if fnmatchcase(name, text.replace(":", "."))]
        if not found:
            problems.append(FieldProblem("?events", f"no event matches {text!r}; known: {', '.join(LIVE_NAMES)}"))
        names.update(found)
    problems += glob_problems(query.match, "?match", hides_paths=hides_paths)
    if problems:
        raise invalid(problems)
    return replace(query, events=tuple(sorted(names)))


class Tick(Struct, frozen=True):
    """What changed since the last tick: how many events of each name, and the queues of their jobs. `dropped` events
    could not be looked at. `is_reset`: events may be missing. `last_dead` is the id of the job that died last, if one
    did; `last_dead_name` that of its file, or its type."""

    events: dict[str, int]
    queues: tuple[str, ...]
    dropped: int = 0
    is_reset: bool = False
    last_dead: str = ""
    last_dead_name: str = ""


def tick_of(events: list[LiveEvent], dropped: int) -> Tick | None:
    """None if nothing changed."""
    counts = Counter(event.name for event in events)
    is_reset = counts.pop(RESET, 0) > 0
    if not counts and not dropped and not is_reset:
        return None
    queues = sorted({event.queue for event in events if event.queue})
    dead = next(((one.job_id, _name_of(one)) for one in reversed(events) if one.name == DEAD), ("", ""))
    return Tick(dict(sorted(counts.items())), tuple(queues), dropped, is_reset, *dead)


def _name_of(event: LiveEvent) -> str:
    """As the event says it: the path of the filter is there even if the server hides paths."""
    path = _object(event.data).get("filepath")
    return path.rpartition("/")[2] if isinstance(path, str) and path else event.type or ""


def sse_frame(name: str, data: bytes, id: str) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id.encode(), name.encode(), data)


def text_frame(name: str, data: bytes) -> str:
    """A frame of a WebSocket: the event's JSON. Frames of the server itself have `event` in front."""
    if name.startswith("job."):
        return data.decode()
    return msgspec.json.encode({"event": name, **_object(data)}).decode()


def _object(data: bytes) -> Mapping[str, object]:
    return msgspec.json.decode(data, type=dict[str, object])
