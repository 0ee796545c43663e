"""Every random sequence of calls gets the replies of the model. A failure prints the shortest sequence that fails."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fileq.testing.conformance.harness import FakeClock, Harness, OpenHarness
from fileq.testing.conformance.state_machine import BrokerMachine

STEPS = 40
# A short history and short lists, so that records expire and are trimmed within one example.
SETTINGS = {"worker.history_ttl": "120s", "worker.completed_max": 3, "worker.starvation_share": 0.34}


def test_every_sequence_of_calls_gets_the_replies_of_the_model(
    open_harness: OpenHarness, state_machine_examples: int
) -> None:
    def open_real(clock: FakeClock) -> Harness:
        return open_harness(SETTINGS, clock)

    machine = type("BrokerMachine", (BrokerMachine,), {"open_real": staticmethod(open_real)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=state_machine_examples,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            phases=[phase for phase in Phase if phase is not Phase.explain],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
