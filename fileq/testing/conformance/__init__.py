"""The conformance tests: what every broker of fileq must do. Authors of brokers run them with pytest.

    class TestShelf(BrokerConformance):
        @pytest.fixture
        def open_harness(self, tmp_path):
            return lambda settings, clock=None: ShelfHarness(config_of("shelf", settings), clock)

`docs/writing-a-broker.md` describes the harness. The package needs pytest and hypothesis; the rest of fileq never
imports it.
"""

import pkgutil

import pytest

# Before the imports below: pytest shows the values in a failed assertion only of modules that it rewrites.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from fileq.testing.conformance.harness import FakeClock, Harness, OpenHarness, config_of  # noqa: E402
from fileq.testing.conformance.memory_harness import MemoryHarness  # noqa: E402
from fileq.testing.conformance.suite import BrokerConformance  # noqa: E402

__all__ = ["BrokerConformance", "FakeClock", "Harness", "MemoryHarness", "OpenHarness", "config_of"]
