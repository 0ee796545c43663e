"""The guards of the limits of routes."""

from tests.support.guards.guard import Guard

LIMITED, DEFERRING = (f"tests/unit/worker/test_{name}.py::test_" for name in ("pump_limits", "deferrals"))
OTHERS_WAIT = LIMITED + "as_many_as_the_limit_run_and_the_others_wait_while_other_routes_run"
NEXT_RUNS = LIMITED + "when_a_job_ends_the_first_deferred_one_runs_at_once"

LIMIT_GUARDS = (
    Guard(
        "No more than `max_running` jobs of a route run in a process",
        "the limit has no effect",
        "route.max_running is not None and running[number] >= route.max_running:",
        "False:",
        OTHERS_WAIT,
    ),
    Guard(
        "The jobs of one turn count for `max_running`",
        "a turn starts as many as there are free slots",
        "                running[number] += 1\n",
        "",
        OTHERS_WAIT,
    ),
    Guard(
        "A job runs only if the broker admits it",
        "`max_running_total` and `rate` have no effect",
        "if answer is None or answer.result is AdmitResult.ADMITTED:",
        "if True:",
        OTHERS_WAIT,
    ),
    Guard(
        "A job that a limit refuses gives the probe of its breaker back",
        "the breaker waits for a probe that does not run",
        "        self._breakers.record(task.route, claim.key, None)\n        self._defer(",
        "        self._defer(",
        LIMITED + "a_refused_job_is_not_the_probe_and_the_breaker_does_not_count_it",
    ),
    Guard(
        "When a job of a limited route ends, the next one runs",
        "a limited route runs one job a second",
        "                self._limits.ended(settling.route)\n",
        "                pass\n",
        NEXT_RUNS,
    ),
    Guard(
        "When the window of a rate ends, the next jobs run",
        "they wait out their deferral",
        "        self._deferrals.release_later(reason, wait_s, route.rate.count)\n",
        "",
        LIMITED + "a_rate_refuses_until_its_window_ends_and_then_as_many_run_at_once",
    ),
    Guard(
        "After a lost reply of admit a renewal finds the jobs that were asked about",
        "they wait until the next renewal",
        ".key, None)\n            self._heartbeats.renew_now()\n",
        ".key, None)\n",
        LIMITED + "a_lost_reply_of_admit_is_asked_again_and_each_job_runs_once",
    ),
    Guard(
        "Jobs of routes without limits cause no call of admit",
        "every turn costs a second round trip",
        "self._broker.admit(asked) if asked else ())\n",
        "self._broker.admit(asked))\n",
        LIMITED + "max_running_is_counted_without_the_broker",
    ),
    Guard(
        "A deferral of a slot that is gone is not waited for",
        "workers show a limit for which no job waits",
        "                self._deferrals.fenced(settlement)\n        new = ",
        "                pass\n        new = ",
        LIMITED + "a_deferral_of_a_slot_that_is_gone_is_not_waited_for",
    ),
    Guard(
        "A job that is released while its deferral is under way is released after it",
        "it waits out its delay",
        "            if state.owed:\n",
        "            if False:\n",
        DEFERRING + "a_job_whose_deferral_is_under_way_is_released_when_the_broker_has_deferred_it",
    ),
    Guard(
        "As many jobs are released as may run",
        "all jobs of a limited route are claimed and deferred again whenever one ends",
        "        while state.due_s and len(first) < count:\n",
        "        while state.due_s:\n",
        DEFERRING + "the_first_jobs_of_a_reason_that_lasts_are_released_and_the_others_wait",
    ),
    Guard(
        "A job that is due already is not released instead of another",
        "a permit that became free is used by no job",
        "            if state.due_s.pop(id) > now_s:",
        "            if state.due_s.pop(id):",
        DEFERRING + "a_job_that_is_due_already_does_not_count_as_released",
    ),
    Guard(
        "As many deferrals under way are released as may run",
        "jobs that a limit has just refused are all claimed again",
        "        owed = min(count - len(first), state.under_way - state.owed)\n",
        "        owed = state.under_way - state.owed\n",
        DEFERRING + "a_job_whose_deferral_is_under_way_is_released_when_the_broker_has_deferred_it",
    ),
    Guard(
        "A release that was meant for a fenced deferral is void",
        "a later job is released although the limit is reached",
        "                state.owed = min(state.owed, state.under_way)\n",
        "",
        DEFERRING + "a_deferral_that_the_broker_refused_is_not_waited_for",
    ),
    Guard(
        "A planned release of a reason stays as it is",
        "each refusal puts off the end of the window",
        "            if reason not in self._later:\n",
        "            if True:\n",
        DEFERRING + "a_planned_release_happens_at_its_time_and_the_loop_waits_no_longer",
    ),
    Guard(
        "When a lost job of a limited route ends here, the next one runs",
        "the others wait out their deferral",
        "        if self._limits.is_any:\n            self._limits.ended(route)\n",
        "",
        LIMITED + "when_a_running_job_is_lost_the_first_deferred_one_runs_at_once",
    ),
    Guard(
        "A job that its slot lost before it was admitted does not run",
        "it is deferred although another slot has it",
        "            elif answer.result is AdmitResult.LOST:\n",
        "            elif False:\n",
        LIMITED + "a_job_that_its_slot_lost_before_it_was_admitted_does_not_run",
    ),
    Guard(
        "A limit for which no job waits is not shown",
        "workers show a limit that no job has reached",
        "        if still != self.reached:\n",
        "        if False:\n",
        LIMITED + "workers_show_the_limit_while_jobs_wait_for_it",
    ),
)
