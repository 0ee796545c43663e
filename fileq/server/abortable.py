"""uvicorn's protocols, with which an application can disconnect a client at once: `scope["fileq.abort"]()`.

A client that has stopped reading holds back what is written to it. Closing its connection waits until that is sent,
which may be never.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

ABORT = "fileq.abort"


class AbortableHttp(H11Protocol):
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app = _with_abort(self.app, transport)


class AbortableWebSocket(WSProtocol):
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app = _with_abort(self.app, transport)


def _with_abort(app: Any, transport: asyncio.Transport) -> Any:
    inner: ASGIApp = app

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        scope[ABORT] = transport.abort
        await inner(scope, receive, send)

    return call
