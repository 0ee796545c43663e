"""The guards of tasks that one child is given together: each runs once, and one that dies costs no other."""

from tests.support.guards.guard import Guard

BUNDLES, DEATHS, HANDLES = (
    f"tests/integration/executors/test_{name}.py::test_"
    for name in ("process_bundles", "process_bundle_deaths", "child_handle")
)
SPREAD = BUNDLES + "tasks_behind_a_slow_one_are_given_to_other_children"
TWICE = "it runs twice"
LOOP = "for handle in _handles_of(key, self._handles):\n            "

BUNDLE_GUARDS = (
    Guard(
        "A child begins a task only with its token",
        f"a task that was given to another child runs there and here: {TWICE}",
        "                is_mine = length and self._tokens.take(inbox[NUMBER])\n",
        "                is_mine = length\n",
        SPREAD,
    ),
    Guard(
        "A token is that of one task",
        f"a child runs a task that was taken back with the token of the next: {TWICE}",
        "        if self._token != number:\n",
        "        if False:\n",
        HANDLES + "a_task_that_was_taken_back_is_not_the_childs_any_more",
    ),
    Guard(
        "A token that was read for a task that is not the child's is kept for its own",
        "the next task is lost",
        "        if not self._token:\n",
        "        if True:\n",
        HANDLES + "a_task_that_was_taken_back_is_not_the_childs_any_more",
    ),
    Guard(
        "Tasks behind a slow one are given to other children",
        "a job waits for as long as another one runs",
        "                left += handle.take_back()\n                until_s = 0.0\n",
        "                until_s = 0.0\n",
        SPREAD,
    ),
    Guard(
        "Tasks behind a handler that waits are given to other children soon",
        "the pump waits for a handler as for a child that gets no core",
        "        if spent_s > HELD_UP_MAX_S or not self._child.is_runnable():\n",
        "        if spent_s > HELD_UP_MAX_S:\n",
        "tests/unit/worker/test_executors_bundle_timer.py::test_a_handler_that_waits_is_not_held_up",
    ),
    Guard(
        "The pump waits only a moment for a child that gets no core",
        "on a busy machine jobs that could run elsewhere wait, and outcomes are settled late",
        "        if spent_s > HELD_UP_MAX_S or not self._child.is_runnable():\n",
        "        if not self._child.is_runnable():\n",
        "tests/unit/worker/test_executors_bundle_timer.py::test_the_pump_does_not_wait_long_for_a_child_that_gets_no_core",
    ),
    Guard(
        "Tasks that a child had not begun when it ended are given to others",
        "jobs count as died although they did not run",
        "        self.queued = deque(pair for pair in tasks if pair[0] not in numbers)\n",
        "        self.queued, numbers = deque(tasks), []\n",
        DEATHS + "the_death_of_a_child_ends_one_task_of_its_bundle_and_the_others_run_once",
    ),
    Guard(
        "A cancellation stops the task that it names",
        "what follows a task in its stream cancels it",
        "            if not length and number == self._number:\n",
        "            if number:\n",
        BUNDLES + "what_was_taken_back_does_not_cancel_the_task_that_runs",
    ),
    Guard(
        "A child that lost its tokens is replaced",
        "it reads a file of its handler as tokens, and its tasks are lost",
        " or not is_same(self._tokens_fd, self._tokens_status):\n",
        ":\n",
        DEATHS + "a_child_that_can_not_go_on_after_a_task_is_replaced_and_no_task_of_its_bundle_is_lost",
    ),
    Guard(
        "A child is given no more tasks together than `worker.max_jobs_per_child` leaves",
        "memory that handlers leak grows beyond what was planned for",
        "        limit = self._max_jobs - handle.jobs_done if self._max_jobs else len(tasks)\n",
        "        limit = len(tasks)\n",
        BUNDLES + "a_child_is_never_given_more_tasks_than_max_jobs",
    ),
    Guard(
        "The time of a task starts with the outcome of the one before",
        "a job fails for the time that others took",
        "            self.kill_at_s = time.monotonic() + self.task.timeout_s\n",
        "            self.kill_at_s = min(self.kill_at_s, time.monotonic() + self.task.timeout_s)\n",
        HANDLES + "the_time_of_a_task_starts_with_the_outcome_of_the_one_before",
    ),
    Guard(
        "Output behind the end of a task is that of the next one",
        "a failed attempt keeps what other jobs printed",
        "                if part.number == last:\n                    return\n",
        "",
        BUNDLES + "each_task_of_a_bundle_has_its_own_output",
    ),
    Guard(
        "The thread leaves the output of a child with several tasks alone",
        "a failed attempt keeps what other jobs printed, or loses its own",
        "            if not self._is_alone:\n",
        "            if False:\n",
        "tests/unit/worker/test_executors_output.py::test_the_thread_does_not_read_the_output_of_a_child_with_several_tasks",
    ),
    Guard(
        "Output that was read too early is kept for its task",
        "a failed attempt keeps what another job printed, and that job loses it",
        "self._printed is None and not self._parts:\n",
        "self._printed is None:\n",
        "tests/unit/worker/test_executors_output.py::test_output_that_was_read_with_that_of_the_task_before_is_its_tasks_own",
    ),
    Guard(
        "One task that can't be sent does not end the others of its bundle",
        "one strange job fails others",
        "        except UnsendableTask:  # one of them: they are sent one by one\n            left += tasks[:limit]\n",
        "        except UnsendableTask:  # one of them: they are sent one by one\n",
        BUNDLES + "a_task_that_cannot_be_sent_does_not_keep_its_bundle_from_running",
    ),
    Guard(
        "Slow tasks are not given to one child again",
        "handlers that wait run one after the other",
        "was_done_in_time=was_done and timer",
        "was_done_in_time=True or timer",
        BUNDLES + "slow_tasks_are_not_given_to_one_child_again",
    ),
    Guard(
        "A task behind another one can be cancelled",
        "a cancelled job runs although its cancellation was confirmed",
        f"self._finish_bundles()\n        {LOOP}self._request_stop",
        f"{LOOP}self._request_stop",
        BUNDLES + "a_task_behind_another_one_is_stopped_like_any_other",
    ),
    Guard(
        "A task behind another one can be abandoned",
        "a job that was lost runs beside the worker that has it",
        f"self._finish_bundles()\n        {LOOP}is_running",
        f"{LOOP}is_running",
        BUNDLES + "a_task_behind_another_one_is_stopped_like_any_other",
    ),
    Guard(
        "Tiny tasks are collected while a reply takes long",
        "jobs wait behind a slow one for as long as the broker does not answer",
        "        if not has_tiny_tasks or self._calls[0].reply.wait(0.0):\n",
        "        if True:\n",
        "tests/unit/worker/test_pump_calls.py::test_tiny_tasks_are_collected_before_a_reply_that_takes_longer",
    ),
    Guard(
        "No tiny task waits behind a slow one while a reply takes long",
        "jobs in the second child wait for as long as the broker does not answer",
        "        while self._collect_before_reply():  # they may",
        "        if self._collect_before_reply():  # they may",
        "tests/unit/worker/test_pump_calls.py::test_no_tiny_task_waits_behind_a_slow_one_until_a_late_reply_comes",
    ),
    Guard(
        "While a reply is late, bundle after bundle is collected until another call is worth it",
        "with a server that is far away the pump waits for each reply",
        "        while self._collect_before_reply():\n            if",
        "        if self._collect_before_reply():\n            if",
        "tests/unit/worker/test_pump_calls.py::test_each_bundle_of_tiny_tasks_is_collected_until_a_second_call_is_worth_it",
    ),
    Guard(
        "The bundle of a child that has ended is finished before its death is examined",
        "the task that killed it runs again, and its death is not counted",
        "        self._finish_bundles()  # _on_child_end()",
        "        # _on_child_end()",
        DEATHS + "the_death_of_a_child_is_examined_after_its_bundle",
    ),
    Guard(
        "Two bundles run at the same time",
        "the child waits while the pump decides on its outcomes",
        "        while len(self._bundles) >= OPEN_MAX:\n",
        "        while self._bundles:\n",
        BUNDLES + "two_bundles_run_at_the_same_time_and_a_third_is_sent_when_the_first_has_ended",
    ),
    Guard(
        "What ended while a reply is late goes out before that reply is taken",
        "with a server that is far away only one call is in flight, and the rate is halved",
        " and not self._is_another_due():\n",
        ":\n",
        "tests/unit/worker/test_pump_calls.py::test_tiny_tasks_that_ended_before_a_late_reply_are_settled_by_a_second_call",
    ),
    Guard(
        "The event of a job that is put back precedes that of its next claim",
        "the log of a job is out of order",
        "            is_usual = is_usual and settlement.verb is Verb.COMPLETE\n",
        "",
        "tests/unit/worker/test_pump_calls.py::test_a_completion_is_reported_while_the_next_tasks_run_and_a_failure_before_they_begin",
    ),
)
