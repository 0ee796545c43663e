"""What one caller may take: requests, a share of what all have together, time and memory for bodies; which addresses
count as one client; and the bounded number of threads in which endpoints call the broker and read and write files."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from starlette.requests import Request

from fileq.core.units import Rate
from fileq.server.problems import ApiProblem, broker_away

T = TypeVar("T")
BURST = 2
CALLERS_MAX = 10_000


def parsed(text: str) -> IPv4Address | IPv6Address | None:
    """None for what is no address. On a socket for IPv6 an IPv4 client has an address such as ::ffff:192.0.2.1; here it
    is an IPv4 address all the same. The zone of a link-local address is left out."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def shown(text: str) -> str:
    """The address as limits, logs and the audit name it."""
    return str(parsed(text) or text)


def client_network(text: str) -> str:
    """What counts as one client: of IPv6 a network of 64 bits, which one machine may have for itself."""
    found = parsed(text)
    if isinstance(found, IPv6Address):
        return str(ip_network((int(found), 64), strict=False))
    return str(found or text[:64])


class Proxies:
    """The networks of server.trusted_proxies."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._networks = [_unmapped(ip_network(text)) for text in texts]

    def __contains__(self, address: str) -> bool:
        found = parsed(address)
        return found is not None and any(found in network for network in self._networks)


def _unmapped(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """::ffff:192.0.2.0/120 is 192.0.2.0/24, as addresses are read."""
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return network if mapped is None or network.prefixlen < 96 else ip_network((int(mapped), network.prefixlen - 96))


class RateLimiter:
    """How many requests each caller may send: token buckets, with a burst of twice the rate. Knows no clock but the one
    it is given. For one thread: the event loop's."""

    def __init__(self, rate: Rate, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._per_s = rate.count / (rate.window_ms / 1000)
        self._burst = float(rate.count * BURST)
        self._monotonic = monotonic
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted

    def take(self, caller: str) -> None:
        """Raises ApiProblem, with the time to wait, for a request above the limit."""
        if wait_s := self.wait_s(caller):
            detail = f"the limit is {self._rate} (server.rate_limit); try again in {wait_s} s"
            raise ApiProblem("rate-limited", detail, retry_after_s=wait_s)
        self.spend(caller)

    def wait_s(self, caller: str) -> int:
        """How long until a request is within the limit; 0 if it is one now."""
        tokens = self._tokens(caller, self._monotonic())
        return max(1, math.ceil((1 - tokens) / self._per_s)) if tokens < 1 else 0

    def spend(self, caller: str) -> None:
        """Counts a request, whether it is within the limit or not."""
        now_s = self._monotonic()
        tokens = self._tokens(caller, now_s)
        if caller not in self._buckets and len(self._buckets) >= CALLERS_MAX:
            self._forget_full(now_s)
        self._buckets[caller] = max(0.0, tokens - 1), now_s

    def _tokens(self, caller: str, now_s: float) -> float:
        tokens, then_s = self._buckets.get(caller, (self._burst, now_s))
        return min(self._burst, tokens + (now_s - then_s) * self._per_s)

    def _forget_full(self, now_s: float) -> None:
        """A bucket that is full again is as good as none."""
        full = [caller for caller in self._buckets if self._tokens(caller, now_s) >= self._burst]
        for caller in full or list(self._buckets)[: CALLERS_MAX // 10]:
            del self._buckets[caller]


class Share:
    """What clients share: of each such thing there is a limit in total, and a lower one for each caller.

    Belongs to the event loop. `what` names the things in a refusal, `one` what a caller is."""

    def __init__(self, what: str, most: int, most_of_one: int, *, one: str = "key", retry_after_s: int = 5) -> None:
        self._what = what
        self._most = most
        self._most_of_one = most_of_one
        self._one = one
        self._retry_after_s = retry_after_s
        self._taken = Counter[str]()
        self._total = 0

    def take(self, caller: str, amount: int = 1) -> None:
        """Raises ApiProblem if the caller, or all callers together, would have too many. What is taken must be given
        back."""
        if self._taken[caller] + amount > self._most_of_one:
            raise self._busy(f"this {self._one} has reached its limit of {self._most_of_one:,} {self._what}")
        if self._total + amount > self._most:
            raise self._busy(f"the limit of {self._most:,} {self._what} at a time is reached")
        self._taken[caller] += amount
        self._total += amount

    @contextmanager
    def held(self, caller: str) -> Iterator[None]:
        """Has one of them meanwhile."""
        self.take(caller)
        try:
            yield
        finally:
            self.give_back(caller)

    def give_back(self, caller: str, amount: int = 1) -> None:
        self._total -= amount
        self._taken[caller] -= amount
        if not self._taken[caller]:
            del self._taken[caller]

    def _busy(self, detail: str) -> ApiProblem:
        # The rest of a body is not read, so the connection can't be used again.
        headers = {"Connection": "close"}
        return ApiProblem("busy", f"{detail}; try again", retry_after_s=self._retry_after_s, headers=headers)


# The bodies of requests: how slowly they may arrive, and how much memory those of all requests take together.

BODY_S = 60.0  # for a body that is kept in memory
RATE_S = 20.0  # the server waits so long at most for the next RATE_BYTES of any body
RATE_BYTES = 20 << 10
WAIT_MAX_S = 1.0  # a wait counts as no more, however long the event loop itself was busy
BODIES_MAX = 48 << 20
BODIES_OF_ONE = 24 << 20
# A value in a body takes up to 232 bytes when it is decoded, and as few as 2 before.
VALUES_MAX = 1_500_000
VALUES_OF_ONE = 1_000_000
VALUES_FREE = 10_000  # so few are not counted exactly
STRANGER_S = 5.0  # for the body of a sender that is not known yet
STRANGERS_MAX = 32
STRANGERS_OF_ONE = 8  # of one address
DROPPED_S = 2.0  # for the rest of a body that is refused
DROPPED_MAX = 8 << 20
_CLOSE = {"Connection": "close"}  # no more than DROPPED_MAX of the body is read


async def pieces(http: Request, whole_s: float = math.inf) -> AsyncIterator[bytes]:
    """A body as it arrives. Raises ApiProblem if it arrives too slowly, or takes more than `whole_s`. Only the time for
    which the server waits for the client counts."""
    loop, stream = asyncio.get_running_loop(), aiter(http.stream())
    total_s = waited_s = 0.0
    received = 0
    while True:
        coming = asyncio.ensure_future(anext(stream, None))
        try:
            while not coming.done():
                if total_s >= whole_s:
                    raise _too_slow(f"the body has not arrived within {whole_s:.0f} s")
                if waited_s >= RATE_S:
                    raise _too_slow(f"less than {RATE_BYTES:,} bytes of the body have arrived in {RATE_S:.0f} s")
                began_s, most_s = loop.time(), min(WAIT_MAX_S, whole_s - total_s, RATE_S - waited_s)
                await asyncio.wait({coming}, timeout=most_s)
                passed_s = min(loop.time() - began_s, most_s)
                total_s, waited_s = total_s + passed_s, waited_s + passed_s
        finally:
            coming.cancel()
        piece = coming.result()
        if piece is None:
            return
        received += len(piece)
        if received >= RATE_BYTES:
            waited_s, received = 0.0, 0
        yield piece


async def drop_rest(http: Request) -> None:
    """Reads what is left of a body that is refused, before the connection is closed: most clients send the whole body
    before they read the answer, which the reset of the connection would destroy. Bounded. A client that waits for
    100-continue sends nothing if it gets the answer first."""
    if "expect" in http.headers:
        return
    dropped = 0
    with suppress(ApiProblem, RuntimeError):  # too slow, or there is no rest
        async for piece in pieces(http, DROPPED_S):
            dropped += len(piece)
            if dropped > DROPPED_MAX:
                return


def _too_slow(detail: str) -> ApiProblem:
    return ApiProblem("too-slow", detail, headers=_CLOSE)


# A text, which has no values in it, or signs of which each begins a value.
_TEXT_OR_SIGNS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{,]++', re.DOTALL)


def values_of(raw: bytes) -> int:
    """The number of lists and objects of a JSON text and of the commas in them: an upper bound if it is small, and cut
    above VALUES_OF_ONE. Makes no object of a value."""
    if (signs := sum(map(raw.count, (b"[", b"{", b",")))) <= VALUES_FREE:
        return signs
    values = 0
    for found in _TEXT_OR_SIGNS.finditer(raw):
        if raw[found.start()] != ord('"'):
            values += found.end() - found.start()
            if values > VALUES_OF_ONE:
                break
    return values


class RequestBodies:
    """The bodies that are in memory. Belongs to the event loop."""

    def __init__(self) -> None:
        self._share = Share("bytes of bodies", BODIES_MAX, BODIES_OF_ONE, retry_after_s=1)
        self._values = Share("values in bodies", VALUES_MAX, VALUES_OF_ONE, retry_after_s=1)
        self._strangers = Share("forms in transit", STRANGERS_MAX, STRANGERS_OF_ONE, one="address")

    @contextmanager
    def of(self, caller: str) -> Iterator[RequestBody]:
        """For the body of one request, until it is answered."""
        body = RequestBody(self._share, self._values, caller)
        try:
            yield body
        finally:
            self._share.give_back(caller, body.size)
            self._values.give_back(caller, body.values)

    async def form(self, http: Request, address: str, most: int) -> bytes:
        """The body of a sender that is not known yet: few at a time, and soon."""
        client = client_network(address)
        with self._strangers.held(client), self.of(client) as body:
            return await body.read(http, most, STRANGER_S)


class RequestBody:
    def __init__(self, share: Share, values: Share, caller: str) -> None:
        self._share = share
        self._values = values
        self._caller = caller
        self.size = 0
        self.values = 0

    async def read(self, http: Request, most: int, whole_s: float | None = None) -> bytes:
        """The whole body. Stops reading above the limit, whatever Content-Length says, and after `whole_s` or
        BODY_S."""
        found = bytearray()
        async for piece in pieces(http, whole_s or BODY_S):
            if self.size + len(piece) > most:
                raise ApiProblem("too-large", f"the body has more than {most:,} bytes", headers=_CLOSE)
            self._share.take(self._caller, len(piece))
            self.size += len(piece)
            found += piece
        return bytes(found)

    def take_values(self, count: int) -> None:
        """Before they are decoded. Raises ApiProblem if they would take too much memory."""
        if count > VALUES_OF_ONE:
            raise ApiProblem("too-large", f"the body has more than {VALUES_OF_ONE:,} values; send fewer in a request")
        self._values.take(self._caller, count)
        self.values = count


# The threads in which endpoints call the broker, and those that read and write files for clients. A slow broker or disk
# can't exhaust the process.
#
# A call that does not return in time is abandoned: its request is answered, its thread stays taken until the call ends.
# Threads are daemons, so a broker that hangs does not delay the end of the process.

CALLS_MAX = 16
SCANS_MAX = 3
SCANS_OF_ONE = 2  # of one caller
TURN_S = 0.4  # how long a request waits for its turn
ANSWER_S = 0.9  # with it and its turn a request is answered within about a second
_SILENT_S = 0.5  # a call without a time of its own that has run for this long is probably waiting for the broker


class BrokerPool:
    """Belongs to the event loop that calls it."""

    def __init__(self, calls_max: int = CALLS_MAX, scans_max: int = SCANS_MAX) -> None:
        self._turns = asyncio.Semaphore(calls_max)
        self._scan_turns = asyncio.Semaphore(scans_max)
        self._own_scan_turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads = 0
        self._running: dict[asyncio.Future[Any], float] = {}  # by when they should have returned

    async def call(self, work: Callable[[], T], *, scans_for: str = "", timeout_s: float | None = None) -> T:
        """What the work returns or raises. Raises ApiProblem: busy, or broker-away if it does not return in time.
        `scans_for` is the caller for whom the work looks through lists; "" if it does not."""
        needed = [(self._turns, "too many requests are being served at a time")]
        if scans_for:
            own = self._own_scan_turns.setdefault(scans_for, asyncio.Semaphore(SCANS_OF_ONE))
            needed.insert(0, (self._scan_turns, "too many lists are being read at a time"))
            needed.insert(0, (own, f"this key reads {SCANS_OF_ONE} lists already"))
        taken: list[asyncio.Semaphore] = []
        try:
            for turns, what in needed:
                await self._turn(turns, what)
                taken.append(turns)
        except BaseException:
            for turns in taken:
                turns.release()
            raise
        ended = self._start(work, taken, _SILENT_S if timeout_s is None else timeout_s)
        try:
            return await asyncio.wait_for(asyncio.shield(ended), ANSWER_S if timeout_s is None else timeout_s)
        except TimeoutError:
            if ended.done():
                return ended.result()
            raise broker_away("the broker has not answered in time; the request may still take effect") from None

    async def _turn(self, turns: asyncio.Semaphore, what: str) -> None:
        try:
            await asyncio.wait_for(turns.acquire(), TURN_S)
        except TimeoutError:
            if turns is self._turns and min(self._running.values(), default=math.inf) < time.monotonic():
                raise broker_away("the broker does not answer") from None
            raise ApiProblem("busy", f"{what}; try again", retry_after_s=1) from None

    def _start(self, work: Callable[[], T], taken: Sequence[asyncio.Semaphore], within_s: float) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        ended.add_done_callback(ignore)  # the request may have been answered before
        self._running[ended] = time.monotonic() + within_s

        def finish(result: Any, error: BaseException | None) -> None:
            del self._running[ended]
            for turns in taken:
                turns.release()
            if ended.cancelled():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result)

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, result, error)

        if len(self._running) > self._threads:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"api {self._threads}", daemon=True).start()
        self._work.put(run)
        return ended

    def _serve(self) -> None:
        while True:
            self._work.get()()


def ignore(ended: asyncio.Future[Any]) -> None:
    """Takes the error of a call for which no request waits any more."""
    if not ended.cancelled():
        ended.exception()


class SlowWork:
    """What waits for something other than the broker has a bounded number of threads of its own. Belongs to the event
    loop. A client holds one of the slots during its work, and makes one call() at a time."""

    def __init__(self, what: str, most: int, most_of_one: int, timeout_s: float) -> None:
        self._pool = BrokerPool(calls_max=most)
        self._timeout_s = timeout_s
        self.slots = Share(what, most, most_of_one)

    async def call(self, work: Callable[[], T]) -> T:
        return await self._pool.call(work, timeout_s=self._timeout_s)
