"""The guards of what decides about a job: retry policy, breakers, deferrals, and what happens to its file."""

from tests.support.guards.guard import Guard

BREAKING, RETRYING, BREAKING_ROUTES, DEFERRING = (
    f"tests/unit/{name}.py::test_"
    for name in ("worker/test_breaker", "core/test_retry", "worker/test_breakers", "worker/test_deferrals")
)
AFTER, FILES, CHECKING = (
    f"tests/integration/{name}.py::test_"
    for name in ("worker/test_after", "worker/test_files", "handlers/test_file_check")
)

BREAKER_GUARDS = (
    Guard(
        "The breaker forgets failures that leave its window",
        "old failures open it",
        "            failed.popitem(last=False)\n",
        "            break\n",
        BREAKING + "failures_that_leave_the_window_are_forgotten",
    ),
    Guard(
        "There is one probe at a time",
        "a broken handler gets many jobs after each cooldown",
        "        return self._probe is None\n",
        "        return True\n",
        BREAKING + "while_a_probe_runs_there_is_no_other",
    ),
    Guard(
        "Jobs claimed before the probe do not decide",
        "an old result closes or opens the breaker",
        "if self._window.current == STATE_HALF_OPEN and claim == self._probe:",
        "if self._window.current == STATE_HALF_OPEN:",
        BREAKING + "results_of_jobs_claimed_before_do_not_decide",
    ),
    Guard(
        "Too few samples do not open the breaker",
        "one failure stops a route",
        "if total >= self._settings.min_samples and ",
        "if ",
        BREAKING + "too_few_samples_never_open_it",
    ),
    Guard(
        "An open breaker lets no job through before its cooldown ends",
        "a broken handler gets a job at every turn",
        "            if self._clock() - self._window.opened_s < self._settings.cooldown_period:\n",
        "            if False:\n",
        BREAKING + "an_open_breaker_admits_nothing_until_its_cooldown_is_over",
    ),
    Guard(
        "A job counts once in the window of a breaker",
        "a few bad jobs that are retried outweigh the good ones",
        "            failed.pop(job, None)\n",
        "            pass\n",
        BREAKING + "the_success_of_a_job_replaces_its_failure",
    ),
    Guard(
        "Just after a cooldown a job that has not failed is the probe",
        "bad jobs that are retried hold back the good ones, one cooldown for each retry",
        "            if has_failed and now_s",
        "            if False and now_s",
        BREAKING + "just_after_the_cooldown_a_job_that_has_not_failed_is_preferred_as_the_probe",
    ),
    Guard(
        "A breaker whose route has no jobs closes",
        "it stays half-open forever",
        "                breaker.close_if_idle()\n",
        "                pass\n",
        BREAKING_ROUTES + "a_breaker_whose_route_has_no_jobs_for_a_window_closes",
    ),
    Guard(
        "A breaker that defers jobs is not idle",
        "it closes between two tries, and all its jobs fail at once",
        "            if breaker is not None and not count:\n",
        "            if breaker is not None:\n",
        BREAKING_ROUTES + "a_breaker_that_defers_jobs_does_not_close_by_itself",
    ),
    Guard(
        "One failing route does not stop the others",
        "healthy jobs wait for a broken handler",
        "        if not self.is_limiting:\n            return wanted\n",
        "",
        BREAKING_ROUTES + "a_failing_route_does_not_stop_the_others",
    ),
    Guard(
        "While every breaker is open one job at a time looks for a probe",
        "after the first cooldown claims stop forever",
        "        return min(wanted, 1) if due else 0\n",
        "        return 0\n",
        BREAKING_ROUTES + "while_every_breaker_is_open_claims_stop_until_the_first_cooldown_ends",
    ),
    Guard(
        "A job that an operator tries as a probe does not wait for the cooldown",
        "the cause is fixed, and no operator can see it for as long as the breaker is open",
        "        if is_probe:\n",
        "        if False:\n",
        BREAKING_ROUTES + "a_job_that_an_operator_tries_does_not_wait_for_the_cooldown_and_decides",
    ),
    Guard(
        "A job that an operator tries beside a probe decides nothing",
        "two jobs decide about one breaker",
        "            if self._window.current == STATE_HALF_OPEN and self._probe is None:\n",
        "            if self._window.current == STATE_HALF_OPEN:\n",
        BREAKING_ROUTES + "a_job_that_an_operator_tries_beside_a_probe_runs_and_decides_nothing",
    ),
    Guard(
        "A breaker that closes releases its deferred jobs",
        "they wait for up to ten minutes",
        "            self._deferrals.end(self.reason(route))\n",
        "            pass\n",
        BREAKING_ROUTES + "after_the_cooldown_the_next_job_of_the_route_is_the_probe_and_the_others_wait",
    ),
    Guard(
        "A reset closes a breaker once",
        "it never opens again",
        "if number != before.get(route, 0)}\n",
        "if number}\n",
        BREAKING_ROUTES + "a_reset_closes_the_breaker_of_its_route_once",
    ),
)

DEFERRAL_GUARDS = (
    Guard(
        "Deferred jobs of one reason are due one after the other",
        "all come back together",
        "max(earliest_s, (state.last_until_s if is_last else state.deferred_until_s) + apart_s)",
        "earliest_s",
        DEFERRING + "jobs_of_one_reason_are_due_one_after_the_other",
    ),
    Guard(
        "No deferral is longer than ten minutes",
        "jobs come back hours after their reason ended",
        "due_s if due_s <= now_s + LONGEST_S else now_s + LONGEST_S / 2",
        "due_s",
        DEFERRING + "a_hundred_thousand_jobs_come_back_at_a_bounded_rate",
    ),
    Guard(
        "Jobs that do not fit into ten minutes are spread",
        "all of them come back in the same second",
        "else now_s + LONGEST_S / 2\n",
        "else now_s + LONGEST_S\n",
        DEFERRING + "a_hundred_thousand_jobs_come_back_at_a_bounded_rate",
    ),
    Guard(
        "A deferral lasts for a second at least",
        "a worker claims and defers the same jobs all the time",
        "max(SHORTEST_S, min(wait_s, LONGEST_S / 2))",
        "min(wait_s, LONGEST_S / 2)",
        DEFERRING + "a_delay_is_at_least_a_second_and_at_most_ten_minutes",
    ),
    Guard(
        "A job deferred while its reason ends is released too",
        "it waits out its delay alone",
        '                self._released.append((id, ""))\n'
        "                self.wake.set()\n                return False\n",
        "                return False\n",
        DEFERRING + "a_job_whose_settlement_arrives_after_the_end_of_its_reason_is_released_too",
    ),
    Guard(
        "A deferred job that came back on its own is forgotten",
        "the list of a long outage grows without bound",
        "            self._forget_due(state, now_s)\n",
        "",
        DEFERRING + "a_job_that_has_come_back_by_itself_is_forgotten",
    ),
    Guard(
        "A page of released jobs stays listed until the broker has answered",
        "after an outage its jobs wait out their delays",
        "            are_due = self._broker.due_now([id for id, _ in page])\n            self._drop_page(len(page))\n",
        "            self._drop_page(len(page))\n            are_due = self._broker.due_now([id for id, _ in page])\n",
        DEFERRING + "a_page_that_did_not_reach_the_broker_is_sent_again",
    ),
    Guard(
        "A worker looks at its start for jobs that an ended process deferred",
        "after a restart they wait out their delays although their reason has ended",
        "        if self._is_search_requested:\n",
        "        if False:\n",
        DEFERRING + "jobs_that_an_ended_process_deferred_are_released_at_the_start",
    ),
    Guard(
        "Deferred jobs that were found are released",
        "after a restart they wait out their delays although their reason has ended",
        "for id, reason in self._found if reason not in self._reasons)\n",
        "for id, reason in ())\n",
        DEFERRING + "a_search_releases_only_jobs_whose_reason_does_not_last_here",
    ),
)

RETRY_GUARDS = (
    Guard(
        "A job runs at most max_retries + 1 times",
        "a failing job runs too often",
        "retries > allowed:",
        "retries > allowed + 1:",
        RETRYING + "a_job_runs_at_most_max_retries_plus_one_times",
    ),
    Guard(
        "A permanent failure is not retried",
        "jobs that can't succeed run again",
        "if failed.is_permanent or retries > allowed:",
        "if retries > allowed:",
        RETRYING + "a_permanent_failure_is_not_tried_again",
    ),
    Guard(
        "A job's own max_retries takes precedence",
        "the setting of a job has no effect",
        "allowed = min(own, allowed) if MADE_BY_TAG in claim.job.tag_values else own",
        "pass",
        RETRYING + "a_jobs_own_limit_takes_precedence_over_the_policy",
    ),
    Guard(
        "A job is dead after max_recoveries deaths",
        "a job that kills its worker kills the next one too",
        "if recoveries > policy.max_recoveries:",
        "if recoveries > policy.max_recoveries + 1:",
        RETRYING + "past_max_recoveries_a_job_is_dead_with_the_cause_of_its_last_death",
    ),
    Guard(
        "The first death costs nothing",
        "after a restart all jobs wait for a backoff",
        "    if recoveries == 1:\n",
        "    if False:\n",
        RETRYING + "the_first_death_counts_one_recovery_and_has_no_delay",
    ),
    Guard(
        "A newer version with its own job supersedes this job",
        "one version of a file runs twice",
        "if its_job not in (None, claim.id):",
        "if False:",
        RETRYING + "a_changed_file_whose_version_has_its_own_job_is_superseded",
    ),
    Guard(
        "No backoff exceeds its maximum",
        "a job waits for days",
        "return min(backoff.max, grown * ",
        "return (grown * ",
        RETRYING + "no_number_of_failures_gives_a_delay_beyond_the_cap",
    ),
)

FILE_GUARDS = (
    Guard(
        "No handler runs on a file outside the allowed roots",
        "a job can name any file of the machine",
        "        if not is_below(real_path, roots):\n",
        "        if False:\n",
        CHECKING + "a_path_outside_the_roots_is_a_permanent_failure",
    ),
    Guard(
        "A handler opens the file that was checked",
        "a file that takes its name after the check is read",
        "        if not is_safe or not HAS_PROC:\n",
        "        if True:\n",
        "tests/integration/handlers/test_safe_open.py::test_a_path_of_a_route_with_safe_open_is_the_checked_file",
    ),
    Guard(
        "A file has vanished only if its root exists",
        "an unmounted volume makes all its jobs dead",
        "    if root is not None and (problem := directory_problem(root)):\n",
        "    if False:\n",
        CHECKING + "a_file_on_a_missing_root_has_not_vanished",
    ),
    Guard(
        "A moved file replaces no other",
        "a file is lost",
        "_RENAME_NOREPLACE = 1\n",
        "_RENAME_NOREPLACE = 0\n",
        AFTER + "a_moved_file_keeps_its_path_below_the_root_and_replaces_nothing",
    ),
    Guard(
        "A file outside the allowed roots is never moved or deleted",
        "a job can delete any file of the machine",
        "        if not any(_is_in(directory, base) for base in bases):\n",
        "        bases.append(directory)\n        if False:\n",
        FILES + "a_file_outside_the_roots_is_neither_read_nor_deleted_nor_moved",
    ),
    Guard(
        "A file is moved without following links that senders planted",
        "a sender chooses which directory of the machine gets a file",
        "_DIRECTORY = _REFERENCE | os.O_DIRECTORY | os.O_NOFOLLOW\n",
        "_DIRECTORY = _REFERENCE | os.O_DIRECTORY\n",
        "tests/integration/security/test_hostile_senders.py::test_a_file_is_never_moved_through_a_link_that_a_sender_planted",
    ),
    Guard(
        "A file that is another version now is never moved or deleted",
        "a version that was not processed is deleted",
        "        if self.processed is not None and changed_version(self.path, status, self.processed) is not None:\n",
        "        if False:\n",
        FILES + "a_version_written_while_the_previous_one_was_processed_is_neither_deleted_nor_moved",
    ),
    Guard(
        "A version that replaces the file at the last moment is put back",
        "a version that was not processed is deleted",
        "        try:\n            self._check_version(source, private)\n            if folder",
        "        try:\n            if folder",
        "tests/unit/worker/test_file_action.py::test_a_version_that_came_at_the_last_moment_is_put_back",
    ),
)

POLICY_GUARDS = (*BREAKER_GUARDS, *DEFERRAL_GUARDS, *RETRY_GUARDS, *FILE_GUARDS)
