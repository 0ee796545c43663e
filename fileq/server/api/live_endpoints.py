"""Live events: Server-Sent Events, and a row for the WebSocket, which web_app.py serves."""

from __future__ import annotations

from msgspec import UnsetType
from starlette.responses import Response

from fileq.server.connections import ABORT
from fileq.server.live_filter import EventsQuery, filter_of
from fileq.server.live_streams import SSE, EventSocket, SseResponse
from fileq.server.problems import ApiProblem
from fileq.server.route import ApiRequest, Route


async def follow_events(request: ApiRequest[EventsQuery, UnsetType]) -> Response:
    """`data` is the event as docs/events.md describes it. `lag` says how many events were dropped because the client or
    the server was too slow, `reset` that events may be missing. `Last-Event-ID` continues after an event."""
    services, query = request.services, request.query
    wanted = filter_of(query, hides_paths=services.hides_paths)
    assert request.http is not None
    if request.http.method == "HEAD":
        return Response(media_type=SSE)
    stream = await services.hub.open(
        wanted, request.caller, request.http.scope[ABORT], is_socket=False, is_ticks=query.mode == "ticks"
    )
    first = services.hub.resume(stream, request.headers.get("last-event-id", ""))
    return SseResponse(services.hub, stream, first)


async def follow_socket(request: ApiRequest[EventsQuery, UnsetType]) -> Response:
    """One event a frame, the same JSON as `data` of /events; `event` of other frames is `lag`, `reset` or `tick`. A
    request that is no WebSocket is answered with 426."""
    headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
    raise ApiProblem("upgrade-required", "this is a WebSocket; for plain HTTP there is /events", headers=headers)


ROUTES = (
    Route(
        method="GET",
        path="/events",
        area="live",
        scopes=EventSocket.scopes,
        summary="follow the events of jobs",
        function=follow_events,
        query=EventsQuery,
        response=SSE,
        problems=("stopping",),
        headers=("Last-Event-ID",),
        reads_body=False,
    ),
    Route(
        method="GET",
        path="/ws",
        area="live",
        scopes=EventSocket.scopes,
        summary="follow the events of jobs by a WebSocket",
        function=follow_socket,
        query=EventsQuery,
        response="application/octet-stream",
        status=101,
        problems=("upgrade-required",),
    ),
)
