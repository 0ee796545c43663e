"""@fileq.before_enqueue in a program that uses the client."""

from __future__ import annotations

import pytest

import fileq
from fileq.brokers.memory import MemoryBroker
from fileq.client.broker_transport import BrokerTransport
from fileq.client.client import Client
from fileq.config import config_from
from fileq.core.errors import ConfigError
from fileq.core.job import Job

CONFIG = config_from({"broker": "memory", "producer": {"scan_dir": "/data"}})


def test_before_enqueue_changes_and_vetoes_the_jobs_of_a_client() -> None:
    @fileq.before_enqueue
    def odd_ones_first(job: Job) -> Job | None:
        number = job.payload_value
        return None if number == 2 else job.but(priority="high") if number % 2 else job

    broker = MemoryBroker(CONFIG)
    client = Client.over(BrokerTransport(broker, CONFIG))
    handles = client.enqueue_many([fileq.Call("count", number) for number in (1, 2, 3, 4)])
    assert [handle.fate for handle in handles] == ["enqueued", "vetoed", "enqueued", "enqueued"]
    with pytest.raises(fileq.ResultExpired, match=r"was not enqueued: a function with @fileq.before_enqueue refused"):
        handles[1].wait(5)
    records = broker.records([handle.id for handle in handles])
    assert [record and record.queue for record in records] == ["high", None, "high", "low"]


def test_a_before_enqueue_that_names_an_unknown_queue_is_refused_before_anything_is_enqueued() -> None:
    @fileq.before_enqueue
    def wrong(job: Job) -> Job:
        return job.but(priority="odd")

    broker = MemoryBroker(CONFIG)
    client = Client.over(BrokerTransport(broker, CONFIG))
    with pytest.raises(ConfigError, match="priority is 'odd' after before_enqueue; it must be one of high, low"):
        client.enqueue("count", 1)
    assert broker.census().counters == {}
