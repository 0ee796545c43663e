"""The guards of the executors: one outcome for each task, limits of time and memory, nothing left running."""

from tests.support.guards.guard import Guard

LIMITS, STOPS, DEATHS, RESULTS, BUNDLES = (
    f"tests/integration/executors/test_process_{name}.py::test_"
    for name in ("limits", "stops", "deaths", "outcomes", "bundles")
)
HANDLES, THREADS = (f"tests/integration/executors/test_{name}.py::test_" for name in ("child_handle", "thread"))
OUTCOMES = "tests/unit/worker/test_executors_outcomes.py::test_"

PROCESS_GUARDS = (
    Guard(
        "A task is killed at its timeout",
        "a handler that hangs keeps its slot forever",
        "            if handle.kill_at_s <= now_s and handle.task is not None:\n",
        "            if False:\n",
        LIMITS + "a_timeout_does_not_affect_other_tasks",
    ),
    Guard(
        "A task behind others of a bundle is killed at its own timeout",
        "a handler that hangs keeps its slot until the timeout of the first task is over, too",
        "                self._watch_task(handle, is_sent=True)\n",
        "                pass\n",
        BUNDLES + "a_task_of_a_bundle_ends_at_its_own_timeout",
    ),
    Guard(
        "A request to stop never gives a task more time",
        "a cancelled job runs longer than its timeout",
        "self.kill_at_s = min(self.kill_at_s, kill_at_s)",
        "self.kill_at_s = kill_at_s",
        HANDLES + "a_stop_request_never_gives_a_task_more_time",
    ),
    Guard(
        "A task that uses too much memory is killed",
        "one job makes the machine kill other processes",
        "            if (used := memory_of(handle.pid)) > limit:\n",
        "            if (used := memory_of(handle.pid)) > limit << 20:\n",
        LIMITS + "a_task_that_uses_too_much_memory_is_killed",
    ),
    Guard(
        "An outcome counts only with the number of its task",
        "the outcome of one task is taken for another's",
        "if number != self.task_number or self.task is None or",
        "if self.task is None or",
        HANDLES + "a_message_that_is_not_the_expected_outcome_is_invalid",
    ),
    Guard(
        "An outcome that was sent counts though its child died",
        "a job that is done runs again",
        "        while handle.is_running and handle.fd in self._pool.by_fd and handle.is_readable():\n",
        "        while False:\n",
        DEATHS + "an_outcome_that_was_sent_counts_though_its_child_died_before_it_was_read",
    ),
    Guard(
        "A task that its child never began is given to the next child",
        "a job counts as died although it did not run",
        "        if handle.has_begun() or handle.stop_request",
        "        if True or handle.stop_request",
        DEATHS + "a_task_whose_child_was_killed_before_it_read_it_is_given_to_the_next",
    ),
    Guard(
        "A task that can't be sent to a child fails alone",
        "one strange job ends the worker",
        "        except UnsendableTask as error:\n",
        "        except ZeroDivisionError as error:\n",
        RESULTS + "a_task_that_cannot_be_sent_is_a_permanent_failure_and_its_child_runs_the_next",
    ),
    Guard(
        "The child of a task that can't be sent runs the next task",
        "one strange job costs the worker a slot",
        "            handle.begin_next()\n            self.idle.append(handle)\n",
        "            handle.begin_next()\n",
        RESULTS + "a_task_that_cannot_be_sent_is_a_permanent_failure_and_its_child_runs_the_next",
    ),
    Guard(
        "An abandoned task is killed",
        "a job that was lost runs on beside the worker that has it",
        "            if is_running:\n                self._replace(handle)\n",
        "",
        STOPS + "an_abandoned_task_is_killed_and_never_collected",
    ),
    Guard(
        "An abandoned task that has just ended is not collected",
        "the outcome of a lost job counts",
        "                self._replace(handle)\n"
        "        self._ended = [(task, outcome) for task, outcome in self._ended if task.key != key]\n",
        "                self._replace(handle)\n",
        STOPS + "a_task_cancelled_before_it_began_and_then_abandoned_is_not_collected",
    ),
    Guard(
        "An outcome is never written into a file of the handler",
        "a handler that closes all descriptors gets its file damaged",
        "        if not is_same(self._stream, self._stream_status):\n",
        "        if False:\n",
        DEATHS + "an_outcome_is_never_written_into_a_file_of_the_handler",
    ),
    Guard(
        "The copy of a child whose handler forked sends no outcome",
        "one task has two outcomes",
        "        if os.getpid() != self._pid:\n            os._exit(0)\n",
        "        if False:\n            os._exit(0)\n",
        DEATHS + "the_copy_of_a_child_whose_handler_forked_sends_no_outcome",
    ),
    Guard(
        "Processes that a task left are gone before its outcome is collected",
        "they work on the file while it is moved",
        "        if descendants.has_children():\n",
        "        if False:\n",
        LIMITS + "leftovers_of_a_task_that_ended_well_are_gone_before_its_outcome_is_collected",
    ),
    Guard(
        "A failure while the worker stops does not count",
        "each shutdown costs the running jobs a retry",
        "        case StopRequest.QUIT if not isinstance(ran, Done | Changed):\n",
        "        case StopRequest.QUIT if False:\n",
        OUTCOMES + "a_failure_while_the_worker_stops_is_a_release",
    ),
    Guard(
        "A job that finishes while the worker stops counts",
        "it runs again",
        "        case StopRequest.QUIT if not isinstance(ran, Done | Changed):\n",
        "        case StopRequest.QUIT:\n",
        OUTCOMES + "a_handler_that_finishes_while_the_worker_stops_counts",
    ),
)

THREAD_GUARDS = (
    Guard(
        "A thread that was given up ends",
        "each timeout adds a thread",
        "                break  # given up: another thread",
        "                continue  # given up: another thread",
        THREADS + "the_outcome_of_a_thread_that_was_left_behind_is_dropped_and_the_thread_ends",
    ),
    Guard(
        "A task that is given up before it began never runs",
        "a cancelled job runs",
        "            if not running.token:\n",
        "            if False:\n",
        THREADS + "a_task_that_is_given_up_before_it_began_never_runs",
    ),
    Guard(
        "Of the thread and the pump one decides on a task",
        "a task that ends at its timeout has two outcomes, or a thread is lost",
        "        try:\n            running.token.pop()\n        except IndexError:\n            return False\n",
        "        running.token.clear()\n",
        THREADS + "threads_are_neither_lost_nor_multiplied_when_tasks_end_just_at_their_timeout",
    ),
    Guard(
        "In a thread a task fails at its timeout",
        "a handler that hangs keeps its slot forever",
        "        if self._next_deadline_s <= (now_s := time.monotonic()):\n",
        "        if (now_s := time.monotonic()) < 0:\n",
        THREADS + "at_its_timeout_a_task_fails_and_its_thread_is_left_behind",
    ),
)

EXECUTOR_GUARDS = (*PROCESS_GUARDS, *THREAD_GUARDS)
