"""What the functions of endpoints work with: one of each for a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fileq.brokers.protocol import FullBroker
from fileq.client.broker_transport import BrokerTransport
from fileq.client.client import Client
from fileq.commands.acknowledgements import Acknowledgement
from fileq.commands.api_keys import KeyStore
from fileq.commands.upload_notes import UploadNotes
from fileq.config import Config
from fileq.core.events import Emit, LoginsFailed
from fileq.server.audit import AuditLog, AuditNote
from fileq.server.authentication import Authentication
from fileq.server.background_work import BackgroundWork
from fileq.server.broker_pool import BrokerPool
from fileq.server.event_hub import EventHub
from fileq.server.job_waits import JobWaits
from fileq.server.open_breakers import OpenBreakers
from fileq.server.rate_limit import FailedLogins, RateLimiter
from fileq.server.request_bodies import RequestBodies
from fileq.server.sessions import LinkLogin, LoginLink, Sessions
from fileq.server.signing import Signer
from fileq.server.slow_work import file_transfers, webhook_tests

UNKNOWN = "unknown"  # who failed to log in, in the audit


class Services:
    """Made in the event loop. Blocking parts: `broker`, `client`, `keys`; only functions in the pool call them.

    `stopping` is set when the server stops. Streams must end then; stop_streams() sets it. `known_causes` are the
    acknowledgements as a page read them last, for pages that must not ask for them."""

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
        self.transport = BrokerTransport(broker, config, clock=now_ms)
        self.client = Client.over(self.transport)
        self.keys = KeyStore(broker, now_ms)
        self.signer = signer
        self.audit = audit
        self.emit = emit
        self.now_ms = now_ms
        self.actions = background.actions
        self.operations = background.operations
        self.action_log = background.action_log
        self.operation_runner = background.runner
        self.samples = background.samples
        self.open_breakers = OpenBreakers(broker)
        self.upload_notes = UploadNotes(broker, now_ms)
        self.pool = BrokerPool()
        self.bodies = RequestBodies()
        self.transfers = file_transfers()
        self.webhook_tests = webhook_tests()
        self.sessions = Sessions(signer, now_ms, config.server.base_path)
        self.failed_logins = FailedLogins(loop.time, loop.call_later, self._report_failed_logins)
        self.authentication = Authentication(
            config.server, self.keys, self.pool, self.sessions, self.failed_logins, now_ms
        )
        forget = self.authentication.forget_cached
        self.link_login = LinkLogin(link, self.keys, self.pool, self.failed_logins, now_ms, forget_keys=forget)
        self.rate_limiter = RateLimiter(config.server.rate_limit, loop.time)
        self.known_causes: Mapping[str, Acknowledgement] = {}
        self.hides_paths = config.server.files == "none"
        self.hub = EventHub(broker, self.pool, self.authentication, hides_paths=self.hides_paths, emit=emit)
        self.waits = JobWaits(broker.states, self.pool, self.hub)
        self.stopping = asyncio.Event()

    def stop_streams(self) -> None:
        """Ends what would hold a connection open: event streams and waiting requests."""
        self.stopping.set()
        self.hub.close()
        self.waits.close()
        self.failed_logins.flush()

    def _report_failed_logins(self, failures: int, addresses: int, address: str, how: str) -> None:
        note = AuditNote()
        note.detail = f"the last one from {address}, by {how}; from {addresses} addresses"
        event = LoginsFailed(failures, addresses, address, how)
        self.audit.add(
            UNKNOWN, "", "failed_login", "/login", count=failures, result=401, request_id="", note=note, event=event
        )
