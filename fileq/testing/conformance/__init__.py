"""The conformance tests: what every broker of fileq must do. Authors of brokers run them with pytest.

    class TestShelf(BrokerConformance):
        @pytest.fixture
        def open_harness(self, tmp_path):
            return lambda settings, clock=None: ShelfHarness(config_of("shelf", settings), clock)

`docs/writing-a-broker.md` describes the harness. The package needs pytest and hypothesis; the rest of fileq never
imports it.
"""

import pytest

_PARTS = (
    *("builders", "strategies", "state_machine", "bury_tests", "cancel_tests", "census_tests", "claim_tests"),
    *("complete_tests", "crash_tests", "dead_letter_tests", "enqueue_tests", "events_tests", "foreign_tests"),
    *("ledger_tests", "overview_tests", "pause_tests", "promote_tests", "rate_limit_tests", "reap_tests"),
    *("records_tests", "registry_tests", "release_tests", "renew_tests", "repair_tests", "retry_tests"),
    *("settle_tests", "state_machine_tests", "undecodable_tests", "waiting_tests"),
)
# Before the imports below: pytest shows the values in a failed assertion only of modules that it rewrites.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from fileq.testing.conformance.harness import FakeClock, Harness, OpenHarness, config_of  # noqa: E402
from fileq.testing.conformance.memory_harness import MemoryHarness  # noqa: E402
from fileq.testing.conformance.suite import BrokerConformance  # noqa: E402

__all__ = ["BrokerConformance", "FakeClock", "Harness", "MemoryHarness", "OpenHarness", "config_of"]
