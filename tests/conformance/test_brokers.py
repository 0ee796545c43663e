"""Our own brokers pass the conformance tests that authors of other brokers run.

FILEQ_TEST_EXAMPLES=2000 makes the state machine search longer.
"""

import os

import pytest

from fileq.testing.conformance import BrokerConformance


class TestBrokers(BrokerConformance):
    class TestStateMachine(BrokerConformance.TestStateMachine):
        # A failure takes minutes: hypothesis looks for the shortest sequence of calls that fails.
        pytestmark = pytest.mark.timeout(600)

    class TestBatchStateMachine(BrokerConformance.TestBatchStateMachine):
        pytestmark = pytest.mark.timeout(600)

    @pytest.fixture
    def state_machine_examples(self) -> int:
        return int(os.environ.get("FILEQ_TEST_EXAMPLES", "40"))
