"""Web pages without a network: a memory broker, the services of a server, and requests made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from starlette.requests import Request

from fileq.brokers.memory import MemoryBroker
from fileq.commands.api_keys import KeyOptions, KeyStore
from fileq.config import config_from
from fileq.core.api_key import Scope
from fileq.core.job import wall_clock_ms
from fileq.server.authentication import RequestSender
from fileq.server.console import console_app
from fileq.server.console.console_app import Console
from fileq.server.services import Services
from tests.support.api_client import BUSY_S
from tests.support.clocks import RecordedEvents

SENDER = RequestSender("127.0.0.1", "http", "127.0.0.1", is_proxy=False)


class ConsolePages:
    """The console of a server on a memory broker. `events` are those of the server, such as a page that failed."""

    def __init__(self, **config: Any) -> None:
        self.config = config_from({"broker": "memory", **config})
        self.broker = MemoryBroker(self.config)
        self.keys = KeyStore(self.broker, wall_clock_ms)
        self.events = RecordedEvents()

    def show(self, addresses: Sequence[str], *scopes: Scope, cookie: str = "") -> list[tuple[int, str]]:
        """The status and the text of these pages below /dashboard, as a new key with these scopes gets them."""
        name = f"key-{len(self.keys.load())}"
        key = self.keys.create(KeyOptions(name, scopes or (Scope.ADMIN,))).key
        return self.show_with(key, addresses, cookie)

    def show_with(self, key: str, addresses: Sequence[str], cookie: str = "") -> list[tuple[int, str]]:
        """As the holder of this key gets them."""
        with patch.object(console_app, "QUICK_S", BUSY_S):
            return asyncio.run(self._show(addresses, key, cookie))

    async def _show(self, addresses: Sequence[str], key: str, cookie: str) -> list[tuple[int, str]]:
        services = Services(self.config, self.broker, asyncio.get_running_loop(), emit=self.events)
        console, found = Console(services), []
        for address in addresses:
            path, _, query = address.partition("?")
            scope = {
                "type": "http",
                "method": "GET",
                "path": f"/dashboard{path}",
                "query_string": query.encode(),
                "headers": [(b"x-api-key", key.encode()), (b"cookie", cookie.encode())],
            }
            answer = await console.view(Request(scope), SENDER, "request-1")
            found.append((answer.status_code, bytes(answer.body).decode()))
        return found
