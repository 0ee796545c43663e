"""The report of a producer: what it says, and that it never disturbs the producer."""

import os
from pathlib import Path

import pytest

from fileq.brokers.memory import MemoryBroker
from fileq.brokers.types import ProducerInfo
from fileq.config import Config, config_from
from fileq.core.errors import BrokerError, BrokerUnavailable
from fileq.producer.producer import Producer
from fileq.producer.producer_report import ProducerReport
from tests.support.clocks import RecordedEvents


class Registry(MemoryBroker):
    """A broker whose calls about producers can fail."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.error: BrokerError | None = None
        self.removed: list[str] = []

    def report_producer(self, id: str, info: ProducerInfo, ttl_ms: int) -> None:
        if self.error is not None:
            raise self.error
        super().report_producer(id, info, ttl_ms)

    def remove_producer(self, id: str) -> None:
        self.removed.append(id)
        if self.error is not None:
            raise self.error
        super().remove_producer(id)


class Setup:
    def __init__(self, scan_dir: str, **producer: object) -> None:
        self.config = config_from(
            {
                "broker": "memory",
                "worker": {"heartbeat_ttl": "6s"},
                "producer": {"scan_dir": scan_dir, "watch": "off", **producer},
            }
        )
        self.registry = Registry(self.config)
        self.events = RecordedEvents()
        self.is_turning = True
        self.producer = Producer(self.config, self.registry, is_once=True)
        self.report = ProducerReport(
            self.config, self.producer, self.registry, emit=self.events, is_turning=lambda: self.is_turning
        )

    def reported(self) -> ProducerInfo:
        self.report.turn()
        [view] = self.registry.producers()
        return view.info


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(str(tmp_path))


def test_the_lease_lasts_for_several_reports(setup: Setup):
    assert setup.report.turn() == 2.0


def test_a_new_producer_has_no_scan_yet(setup: Setup):
    info = setup.reported()
    assert (info.last_scan, info.held_by, info.pid) == (None, "", os.getpid())


def test_an_outage_is_silent(setup: Setup):
    setup.registry.error = BrokerUnavailable("away")
    assert setup.report.turn() == 2.0
    assert setup.events.events == []


def test_a_refusal_is_reported_once_until_a_report_succeeds(setup: Setup):
    setup.registry.error = BrokerError("no permission")
    setup.report.turn()
    setup.report.turn()
    assert setup.events.count("broker.refused") == 1
    setup.registry.error = None
    setup.report.turn()
    setup.registry.error = BrokerError("no permission")
    setup.report.turn()
    assert setup.events.count("broker.refused") == 2


def test_it_removes_only_what_the_broker_has_just_taken(setup: Setup):
    setup.registry.error = BrokerUnavailable("away")
    setup.report.turn()
    setup.report.at_end()
    assert setup.registry.removed == []
    setup.registry.error = None
    setup.report.turn()
    setup.registry.error = BrokerUnavailable("away again")
    setup.report.at_end()
    assert len(setup.registry.removed) == 1


def test_a_producer_whose_loop_makes_no_progress_is_stuck(setup: Setup):
    setup.is_turning = False
    assert setup.reported().state == "stuck"


def test_a_directory_whose_name_is_not_utf_8_is_escaped(tmp_path: Path):
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(odd)
    assert Setup(os.fsdecode(odd)).reported().roots == (f"{tmp_path}/\\xff",)
