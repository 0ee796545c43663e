"""What becomes of a task that was asked to stop, and the words for how a child died."""

import pytest

from fileq.core.outcome import Cancelled, Changed, Died, Done, Failed, Released
from fileq.handlers.task import Ran
from fileq.worker.executors.asked import Asked, ending, timed_out
from fileq.worker.executors.children import pause_after
from fileq.worker.wire import cause_of_death

EVERY_END: list[Ran] = [Done(b"1"), Changed("s"), Failed("no", "ValueError"), timed_out(1.0), Died("killed")]


@pytest.mark.parametrize("ran", EVERY_END)
def test_a_task_that_was_asked_nothing_ends_as_it_ended(ran: Ran) -> None:
    assert ending(Asked.NOTHING, ran) is ran


@pytest.mark.parametrize("ran", EVERY_END)
def test_a_cancelled_task_is_cancelled_however_it_ended(ran: Ran) -> None:
    assert ending(Asked.TO_STOP, ran) == Cancelled()


@pytest.mark.parametrize("ran", [Done(b"1"), Changed("s")])
def test_what_finishes_while_the_worker_stops_counts(ran: Ran) -> None:
    assert ending(Asked.TO_QUIT, ran) is ran


@pytest.mark.parametrize("ran", [Failed("no", "ValueError"), timed_out(1.0), Died("killed")])
def test_what_fails_while_the_worker_stops_is_given_back(ran: Ran) -> None:
    assert ending(Asked.TO_QUIT, ran) == Released()


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


def test_pauses_grow_from_the_second_failure_on_and_have_an_end() -> None:
    assert [pause_after(n) for n in (0, 1, 2, 3)] == [0.0, 0.05, 0.1, 0.2]
    assert pause_after(1000) == 5.0
