"""Which routes have an open breaker, as pages show it: read now and then, of workers that are alive."""

from __future__ import annotations

from fileq.brokers.types import OpenBreaker
from fileq.server.services import KEPT_S, OpenBreakers
from fileq.testing.conformance.builders import worker_info
from fileq.testing.conformance.harness import config_of
from fileq.testing.conformance.memory_harness import MemoryHarness
from tests.support.clocks import ManualClocks


def test_the_routes_are_those_of_living_workers_and_are_kept_for_a_moment() -> None:
    harness, clocks = MemoryHarness(config_of("memory", {})), ManualClocks()
    found = OpenBreakers(harness.broker, clocks.monotonic)
    assert found.routes() == ()
    opened = [worker_info(breakers=(OpenBreaker(route, "open"),)) for route in ("mail", "*.pdf", "mail")]
    harness.broker.register({f"slot-{n}": info for n, info in enumerate(opened)})
    assert found.routes() == ()
    clocks.advance(KEPT_S)
    assert found.routes() == ("*.pdf", "mail")
    harness.advance(2 * harness.config.worker.heartbeat_ttl)
    clocks.advance(KEPT_S)
    assert found.routes() == (), "their heartbeats have ended"
