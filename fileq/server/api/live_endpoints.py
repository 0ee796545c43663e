"""Live events: Server-Sent Events, and the WebSocket, which web_app.py serves. What they send, event_hub.py decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from secrets import token_hex

from msgspec import UnsetType
from starlette.responses import Response
from starlette.websockets import WebSocket

from fileq.core.api_key import Scope
from fileq.server.authentication import RequestSender
from fileq.server.connections import ABORT, Streamed, until_first, until_gone
from fileq.server.event_hub import EventsQuery, checked_query
from fileq.server.problems import ApiProblem, decode_query
from fileq.server.route import ApiRequest, RouteList
from fileq.server.services import Services

ROUTES = RouteList("live")

SSE = "text/event-stream"
GOING_AWAY = 1001
SCOPES = (Scope.READ,)


async def serve_events(services: Services, socket: WebSocket, sender: RequestSender) -> None:
    """Serves /ws. A WebSocket has the same key, session or proxy header as any request, and the same filters."""
    request_id, hub = token_hex(8), services.hub
    try:
        caller = await services.authentication.caller(socket.headers, socket.cookies, sender)
        origin = socket.headers.get("origin")
        if caller.is_browser and origin not in (None, sender.origin):
            # server.cors_origins let pages call the API with a key; answers to other credentials they can't read.
            raise ApiProblem("cross-site", f"Origin is {str(origin)[:100]!r}; from another origin, send a key")
        services.rate_limiter.take(caller.id)
        caller.require(SCOPES)
        query = decode_query(socket.query_params.multi_items(), EventsQuery)
        wanted = checked_query(query, hides_paths=services.hides_paths)
        stream = await hub.open(wanted, caller, socket.scope[ABORT], is_socket=True)
    except Exception as error:
        problem = services.reported(error, "follow_socket", request_id, names_broker=False)
        refusal = problem.response(request_id)
        refusal.headers["X-Request-Id"] = request_id
        await socket.send_denial_response(refusal)
        return

    async def send_all() -> None:
        while (chunk := await hub.next_chunk(stream)) is not None:
            for text in chunk.texts:
                await socket.send({"type": "websocket.send", "text": text})
        await socket.send({"type": "websocket.close", "code": GOING_AWAY})

    try:
        await socket.accept(headers=[(b"x-request-id", request_id.encode())])
        await until_first(send_all(), until_gone(socket.receive, "websocket.disconnect"))
    finally:
        hub.leave(stream)


@ROUTES.add(
    "GET /events",
    SCOPES,
    "follow job events",
    media_type=SSE,
    headers=("Last-Event-ID",),
    reads_body=False,
    problems=("stopping",),
)
async def follow_events(request: ApiRequest[EventsQuery, UnsetType]) -> Response:
    """`data` is the event as docs/events.md describes it. `lag` says how many events were dropped because the client or
    the server was too slow, `reset` that events may be missing. `Last-Event-ID` continues after an event."""
    hub = request.services.hub
    wanted = checked_query(request.query, hides_paths=request.services.hides_paths)
    assert request.http is not None
    if request.http.method == "HEAD":
        return Response(media_type=SSE)
    stream = await hub.open(wanted, request.caller, request.http.scope[ABORT], is_socket=False)
    first = hub.resume(stream, request.headers.get("last-event-id", ""))

    async def chunks() -> AsyncIterator[bytes]:
        yield first
        while (chunk := await hub.next_chunk(stream)) is not None:
            yield chunk.body

    return Streamed(chunks(), lambda: hub.leave(stream), headers={"X-Accel-Buffering": "no"}, media_type=SSE)


@ROUTES.add(
    "GET /ws",
    SCOPES,
    "follow job events over a WebSocket",
    media_type="application/octet-stream",
    status=101,
    problems=("upgrade-required",),
)
async def follow_socket(request: ApiRequest[EventsQuery, UnsetType]) -> Response:
    """One event a frame, the same JSON as `data` of /events; `event` of other frames is `lag`, `reset` or `tick`. A
    request that is no WebSocket is answered with 426."""
    headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
    raise ApiProblem("upgrade-required", "this is a WebSocket; for plain HTTP there is /events", headers=headers)
