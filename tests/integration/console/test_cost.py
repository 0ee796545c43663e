"""What a web page costs the broker: at most three round trips and one bounded scan, counted on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from fileq.actions.bulk import JobAction
from fileq.brokers.batches import NewBatch
from fileq.brokers.types import Entry, WorkerInfo
from fileq.client.options import WantedSchedule
from fileq.client.schedule_changes import add_schedule, run_now
from fileq.commands.acknowledgements import acknowledge_group
from fileq.commands.action_log import ActionLog
from fileq.commands.admin.pauses import set_paused
from fileq.config import Config
from fileq.core.batch import Callback, CallbackKind, callback_id
from fileq.core.delivery import CHECK_TYPE
from fileq.core.job import Version, encode, file_job, wall_clock_ms
from fileq.core.outcome import Output
from fileq.core.settlement import bury, complete, defer
from fileq.core.webhook import DELIVERY_TYPE, Webhook, WebhookFilter
from fileq.server.authentication import BASIC, admin
from fileq.server.console.console_app import VIEWS
from fileq.server.console.view import View
from fileq.server.route import ApiRequest
from fileq.server.services import Services
from fileq.testing.conformance.builders import a_job
from fileq.webhooks.store import WebhookStore
from tests.support.clocks import RecordedEvents
from tests.support.counted_broker import CountedBroker
from tests.support.fault_proxy import FaultProxy
from tests.support.redis_store import Store, config_on
from tests.support.servers import Server

ROUND_TRIPS = 3
CHECKS = ("/admin/consistency", "/admin/environment")  # an operator starts them; without that they ask nothing
PROBE, FINGERPRINT, ACTION = "waits-0", "0123456789ab", "action"


class Cost(NamedTuple):
    round_trips: int
    scans: int
    verbs: tuple[str, ...]


class Shelf(NamedTuple):
    """A broker with something for every page, and the settings of a server that shows the content of files."""

    broker: CountedBroker
    config: Config
    file: Path


@pytest.fixture
def shelf(valkey: Server, tmp_path: Path) -> Iterator[Shelf]:
    file = tmp_path / "invoice.pdf"
    file.write_text("the content")
    with FaultProxy(valkey.port) as proxy, Store(valkey) as store:
        values = {"server.files": "preview", "producer.scan_dir": str(tmp_path)}
        filled(store, config_on(**values, **store.settings), file)
        config = config_on(**{**values, **store.settings, "redis.addr": f"127.0.0.1:{proxy.port}"})
        yield Shelf(CountedBroker(store.through(proxy.port), proxy), config, file)


def filled(store: Store, config: Config, file: Path) -> None:
    """Jobs in every state, the file that one of them made, a batch, a schedule, a webhook and an acknowledgement."""
    broker = store.broker
    broker.register({"host-7-0-ffff": WorkerInfo("host", 7, wall_clock_ms(), "1", ("high", "low"), lease_ms=30_000)})

    def end(*entries: Entry, error: str = "", made: bytes = b"") -> None:
        for entry in entries:
            broker.enqueue([entry])
            [claim] = broker.settle_and_claim([], ["host-7-0-ffff"]).claims
            ending = bury(claim, claim.raw, error=error, kind="E") if error else complete(claim)
            outputs = (Output(made, 1, "1-1"),) if made else ()
            marked = replace(ending, outputs=outputs, fingerprint=FINGERPRINT if error else "")
            broker.settle_and_claim([marked], [])

    then = Callback(CallbackKind.THEN, encode(a_job(callback_id("nightly", CallbackKind.THEN))), "low")
    broker.create_batch(NewBatch("nightly", "nightly", allow_failures=True, callbacks=(then,)))
    members = [Entry(replace(a_job(f"m{n}"), batch_id="nightly"), "low", joins=True) for n in range(3)]
    end(
        members[0],
        Entry(replace(a_job("check"), type=CHECK_TYPE, batch_id="nightly"), "low", joins=True, is_own=True),
        error="E: a",
    )
    end(*(Entry(a_job(f"dead-{n}"), "low") for n in range(30)), error="ValueError: page 3")
    end(*(Entry(a_job(f"done-{n}"), "low") for n in range(5)), made=str(file).encode())
    end(
        *(Entry(replace(a_job(f"hook-{n}"), type=DELIVERY_TYPE), "low", is_own=True) for n in range(3)),
        error="E: no answer",
    )
    add_schedule(broker, config, "report", WantedSchedule("@every 15m", "report"), where="a test")
    run_now(broker, config, "report")
    WebhookStore(broker, config.webhooks, wall_clock_ms).add(
        Webhook("alerts", "https://example.org/", ("job.dead",), WebhookFilter())
    )
    acknowledge_group(broker, FINGERPRINT, "known", "me", wall_clock_ms())
    path, status = str(file).encode(), file.stat()
    signature = f"{status.st_size}-{status.st_mtime_ns}"
    job = file_job(path, size=status.st_size, priority="low", now=datetime.now(UTC), signature=signature, id="file")
    broker.enqueue(
        [Entry(job, "low", Version(path, signature)), *(Entry(a_job(f"waits-{n}"), "low") for n in range(30))]
    )
    broker.enqueue([Entry(a_job(f"later-{n}"), "low", delay_ms=3_600_000) for n in range(30)])
    [claim] = broker.settle_and_claim([], ["host-7-0-ffff"]).claims
    broker.settle_and_claim(
        [defer(claim, reason="the circuit breaker of a is open", delay_ms=60_000)], ["host-7-0-ffff"]
    )
    broker.enqueue([members[1]])
    ActionLog(broker, wall_clock_ms).add(JobAction.RETRY, "me", [f"dead-{n}" for n in range(30)], id=ACTION)
    set_paused(broker, "low", config.worker.priorities, paused=True, by="a test")


def addresses(page: View, file: Path) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """The parameters and the queries with which a page is asked for."""
    params = {
        "/jobs/{id}": {"id": PROBE},
        "/scheduled/edit/{name}": {"name": "report"},
        "/batches/{id}": {"id": "nightly"},
        "/webhooks/{name}": {"name": "alerts"},
        "/admin/operations/{id}": {"id": ACTION},
    }
    queries: dict[str, list[dict[str, Any]]] = {
        "": [{}, {"hours": "30d"}],
        "/jobs": [{}, {"status": "dead"}, {"type": "none"}, {"q": "page"}, {"batch": "nightly"}],
        "/dead": [{}, {"fingerprint": FINGERPRINT, "probe": PROBE}, {"by": "directory"}, {"match": "*.pdf"}],
        "/files": [{}, {"match": "*.pdf"}, {"status": "dead"}],
        "/files/trace": [{"path": str(file)}, {"path": str(file), "job": "file"}],
        "/admin/operations/{id}": [{}, {"status": "dead"}],
        "/scheduled/preview": [{"cron": "@daily"}],
    }
    others = [({"id": "dead-0"}, {})] if page.open_path == "/jobs/{id}" else []
    return [(params.get(page.open_path, {}), query) for query in queries.get(page.open_path, [{}])] + others


def costs(shelf: Shelf) -> dict[str, Cost]:
    async def measured() -> dict[str, Cost]:
        broker, events = shelf.broker, RecordedEvents()
        services = Services(shelf.config, broker, asyncio.get_running_loop(), emit=events)
        found = {}
        for page in VIEWS:
            for params, given in addresses(page, shelf.file):
                query = page.query(**given)
                broker.calls.clear()
                page.function(ApiRequest(admin("user:a", "a", BASIC), params, query, UNSET, services))
                verbs = tuple(f"{call.verb}{'*' if call.scan else ''}" for call in broker.calls if call.round_trips)
                found[f"{page.open_path}?{given}{params}"] = Cost(broker.round_trips, broker.scans, verbs)
        return found

    return asyncio.run(measured())


def test_a_page_costs_at_most_three_round_trips_and_one_scan(shelf: Shelf) -> None:
    found = costs(shelf)
    for address, cost in found.items():
        print(f"{address:60} {cost.round_trips} {cost.scans} {' '.join(cost.verbs)}")
    dear = {address: cost for address, cost in found.items() if cost.round_trips > ROUND_TRIPS or cost.scans > 1}
    assert dear == {}
    assert all(found[f"{path}?{{}}{{}}"] == Cost(0, 0, ()) for path in CHECKS)
    assert {cost.scans for cost in found.values()} == {0, 1}, "scans are recognised"
