"""The bodies of requests: how slowly they may arrive, and how much memory those of all requests take together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

from starlette.requests import Request

from fileq.server.client_address import client_network
from fileq.server.problems import ApiProblem
from fileq.server.shares import Share

BODY_S = 60.0  # for a body that is kept in memory
RATE_S = 20.0  # the server waits so long at most for the next RATE_BYTES of any body
RATE_BYTES = 20 << 10
TURN_S = 1.0  # a wait counts as no more, however long the event loop itself was busy
BODIES_MAX = 48 << 20
BODIES_OF_ONE = 24 << 20
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
                began_s, most_s = loop.time(), min(TURN_S, whole_s - total_s, RATE_S - waited_s)
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


def _too_large(most: int) -> ApiProblem:
    return ApiProblem("too-large", f"the body has more than {most:,} bytes", headers=_CLOSE)


class RequestBodies:
    """The bodies that are in memory. Belongs to the event loop."""

    def __init__(self) -> None:
        self._share = Share("bytes of bodies", BODIES_MAX, BODIES_OF_ONE, retry_after_s=1)
        self._strangers = Share("forms on their way", STRANGERS_MAX, STRANGERS_OF_ONE, one="address")

    @contextmanager
    def of(self, caller: str) -> Iterator[RequestBody]:
        """For the body of one request, until it is answered."""
        body = RequestBody(self._share, caller)
        try:
            yield body
        finally:
            self._share.give_back(caller, body.size)

    async def form(self, http: Request, address: str, most: int) -> bytes:
        """The body of a sender that is not known yet: few at a time, and soon."""
        client = client_network(address)
        self._strangers.take(client)
        try:
            found = bytearray()
            async for piece in pieces(http, STRANGER_S):
                if len(found) + len(piece) > most:
                    raise _too_large(most)
                found += piece
            return bytes(found)
        finally:
            self._strangers.give_back(client)


class RequestBody:
    def __init__(self, share: Share, caller: str) -> None:
        self._share = share
        self._caller = caller
        self.size = 0

    async def read(self, http: Request, most: int) -> bytes:
        """The whole body. Stops reading above the limit, whatever Content-Length says, and after BODY_S."""
        found = bytearray()
        async for piece in pieces(http, BODY_S):
            if self.size + len(piece) > most:
                raise _too_large(most)
            self._share.take(self._caller, len(piece))
            self.size += len(piece)
            found += piece
        return bytes(found)
