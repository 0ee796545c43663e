"""Every random sequence of calls about batches gets the replies of the model. Counts agree, callbacks fire once."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fileq.testing.conformance.batch_state_machine import BatchMachine
from fileq.testing.conformance.harness import FakeClock, Harness, OpenHarness

STEPS = 30
# A short history and short lists, so that the record of a member is gone before its batch has finished.
SETTINGS = {"worker.history_ttl": "120s", "worker.completed_max": 3}


def test_every_sequence_of_calls_about_batches_gets_the_replies_of_the_model(
    open_harness: OpenHarness, state_machine_examples: int
) -> None:
    def open_real(clock: FakeClock) -> Harness:
        return open_harness(SETTINGS, clock)

    machine = type("BatchMachine", (BatchMachine,), {"open_real": staticmethod(open_real)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, state_machine_examples // 3),
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            phases=[phase for phase in Phase if phase is not Phase.explain],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
