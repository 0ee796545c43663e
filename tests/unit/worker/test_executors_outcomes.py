"""The outcome of a task that was requested to stop, the texts for the death of a child, and the pauses after one."""

import pytest

from fileq.core.outcome import Cancelled, Changed, Died, Done, Failed, Ran, Released, timed_out
from fileq.core.settlement import StopRequest, outcome_after
from fileq.worker.executors.process.child_pool import pause_after
from fileq.worker.executors.process.messages import cause_of_death

ALL_OUTCOMES: list[Ran] = [Done(b"1"), Changed("s"), Failed("no", "ValueError"), timed_out(1.0), Died("killed")]


@pytest.mark.parametrize("ran", ALL_OUTCOMES)
def test_without_a_stop_request_the_outcome_is_unchanged(ran: Ran) -> None:
    assert outcome_after(StopRequest.NONE, ran) is ran


@pytest.mark.parametrize("ran", ALL_OUTCOMES)
def test_a_cancelled_task_ends_as_cancelled_whatever_its_outcome(ran: Ran) -> None:
    assert outcome_after(StopRequest.CANCEL, ran) == Cancelled()


@pytest.mark.parametrize("ran", [Done(b"1"), Changed("s")])
def test_a_handler_that_finishes_while_the_worker_stops_counts(ran: Ran) -> None:
    assert outcome_after(StopRequest.QUIT, ran) is ran


@pytest.mark.parametrize("ran", [Failed("no", "ValueError"), timed_out(1.0), Died("killed")])
def test_a_failure_while_the_worker_stops_is_a_release(ran: Ran) -> None:
    assert outcome_after(StopRequest.QUIT, ran) == Released()


@pytest.mark.parametrize("request_", [StopRequest.CANCEL, StopRequest.QUIT])
def test_an_error_while_a_handler_stops_is_kept_unless_it_is_the_usual_way_to_stop(request_: StopRequest) -> None:
    def raised(kind: str) -> Failed | None:
        ended = outcome_after(request_, Failed(f"{kind}: no", kind, traceback="File app.py, line 3"))
        assert isinstance(ended, Cancelled | Released)
        return ended.raised

    kept = {kind for kind in ("ValueError", "InterruptedError", "CancelledError", "Retry", "Timeout") if raised(kind)}
    assert kept == {"ValueError"}


@pytest.mark.parametrize(
    ("timeout_s", "error"),
    [(300.0, "timed out after 5m"), (0.5, "timed out after 500ms"), (5400.0, "timed out after 1h30m")],
)
def test_a_timeout_names_its_length(timeout_s: float, error: str) -> None:
    assert timed_out(timeout_s) == Failed(error, "Timeout")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-11, "killed by signal SIGSEGV"),
        (-9, "killed by signal SIGKILL"),
        (-40, "killed by signal 40"),
    ],
)
def test_the_cause_of_a_death_names_the_status_or_the_signal(code: int, cause: str) -> None:
    assert cause_of_death(code) == cause


def test_pauses_double_with_each_failure_up_to_a_limit() -> None:
    assert [pause_after(n) for n in (0, 1, 2, 3)] == [0.0, 0.05, 0.1, 0.2]
    assert pause_after(1000) == 5.0
