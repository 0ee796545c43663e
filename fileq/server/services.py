"""What the functions of endpoints work with: one of each for a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fileq.brokers.protocol import FullBroker
from fileq.client.broker_transport import BrokerTransport
from fileq.client.client import Client
from fileq.commands.api_keys import KeyStore
from fileq.config import Config
from fileq.core.events import Emit
from fileq.server.audit import AuditLog
from fileq.server.authentication import Authentication
from fileq.server.background_work import BackgroundWork
from fileq.server.broker_pool import BrokerPool
from fileq.server.job_waits import JobWaits
from fileq.server.rate_limit import RateLimiter
from fileq.server.sessions import LoginLink, Sessions
from fileq.server.signing import Signer


class Services:
    """Made in the event loop. Blocking parts: `broker`, `client`, `keys`; only functions in the pool call them.

    `stopping` is set when the server stops. Streams must end then; stop_streams() sets it."""

    def __init__(
        self,
        config: Config,
        broker: FullBroker,
        signer: Signer,
        audit: AuditLog,
        background: BackgroundWork,
        *,
        emit: Emit,
        now_ms: Callable[[], int],
        link: LoginLink | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.config = config
        self.broker = broker
        self.client = Client.over(BrokerTransport(broker, config, clock=now_ms))
        self.keys = KeyStore(broker, now_ms)
        self.signer = signer
        self.audit = audit
        self.emit = emit
        self.now_ms = now_ms
        self.link = link
        self.actions = background.actions
        self.operations = background.operations
        self.operation_runner = background.runner
        self.samples = background.samples
        self.pool = BrokerPool()
        self.waits = JobWaits(broker.records, self.pool)
        self.sessions = Sessions(signer, now_ms, config.server.base_path)
        self.authentication = Authentication(config.server, self.keys, self.pool, self.sessions, now_ms)
        self.rate_limiter = RateLimiter(config.server.rate_limit, loop.time)
        self.stopping = asyncio.Event()

    def stop_streams(self) -> None:
        """Ends what would hold a connection open: event streams and waiting requests."""
        self.stopping.set()
        self.waits.close()
