"""The guards of the worker's loop: pump, slots, heartbeats, reaper."""

from tests.support.guards.guard import Guard

TURNS, CALLS, FENCED, RENEWALS, DEFERRED = (
    f"tests/unit/worker/test_pump_{name}.py::test_" for name in ("turns", "calls", "fenced", "heartbeats", "deferrals")
)
REAPING, SLOT = (f"tests/unit/worker/test_{name}.py::test_" for name in ("reaper", "slot"))
GONE = "tests/unit/brokers/test_local_processes.py::test_"

PUMP_GUARDS = (
    Guard(
        "A fenced outcome is not reported as settled, and its file stays",
        "the file of a job that another worker runs is moved or deleted",
        "            if result is SettleResult.FENCED:\n",
        "            if False:\n",
        FENCED + "a_fenced_outcome_is_not_reported_as_completed_and_its_file_stays",
    ),
    Guard(
        "The file is moved or deleted after the broker accepted the outcome",
        "`worker.after` has no effect",
        "                self._post_actions.add(settlement)\n",
        "                pass\n",
        FENCED + "an_outcome_that_the_broker_accepts_is_reported_and_its_file_deleted",
    ),
    Guard(
        "A slot that a claim finds gone is replaced",
        "it gets no job until the next renewal",
        "                self._replace(slot)\n        if reply.buried",
        "                pass\n        if reply.buried",
        FENCED + "a_slot_that_a_claim_finds_gone_is_replaced_at_once",
    ),
    Guard(
        "After a lost reply no other call in flight is used",
        "its claims run although the worker may be stopping",
        "            self._drop_calls()\n            self._heartbeats.renew_now()",
        "            self._heartbeats.renew_now()",
        CALLS + "after_a_lost_reply_no_other_call_in_flight_is_sent_again",
    ),
    Guard(
        "After a lost reply a renewal finds what was claimed",
        "the claimed jobs wait until the next renewal",
        "            self._drop_calls()\n            self._heartbeats.renew_now()\n",
        "            self._drop_calls()\n",
        CALLS + "a_job_that_was_claimed_by_a_call_without_a_reply_starts_with_the_next_turn",
    ),
    Guard(
        "No renewal while a call is in flight",
        "the two replies contradict each other about a slot",
        "            while self._calls:\n                claim_count += self._take_reply()\n",
        "",
        CALLS + "a_renewal_waits_for_the_calls_in_flight",
    ),
    Guard(
        "A stopping worker claims nothing",
        "a shutdown never ends",
        "if may_claim and not self.is_quiet and (",
        "if may_claim and (",
        TURNS + "a_quiet_pump_settles_and_claims_nothing",
    ),
    Guard(
        "While every breaker is open no job is claimed",
        "all jobs are claimed and deferred again and again",
        "claiming = free[: self._breakers.permits(len(free))]",
        "claiming = free",
        DEFERRED + "while_every_route_is_open_claims_stop_and_the_first_cooldown_starts_one_job_at_a_time",
    ),
    Guard(
        "A slot is in one call at a time",
        "its outcome is sent twice",
        "settling = [slot for slot in self._slots.settling if slot not in in_flight]\n",
        "settling = [*self._slots.settling]\n",
        CALLS + "under_load_two_calls_are_in_flight_about_half_of_the_slots_each",
    ),
    Guard(
        "A deferral is logged once for its reason",
        "thousands of deferred jobs fill the log",
        "                if self._deferrals.settled(settlement) or settling.route is not None:",
        "                if self._deferrals.settled(settlement) or settling.route is not None or True:",
        DEFERRED + "a_deferral_is_logged_once_for_its_reason_and_is_no_claim",
    ),
    Guard(
        "What was claimed before a stop is released, not run",
        "a shutdown starts jobs",
        "        if self.is_quiet:\n            self._release(new)",
        "        if False:\n            self._release(new)",
        CALLS + "what_is_claimed_after_quiet_never_starts_and_is_released",
    ),
    Guard(
        "A claim for a slot that is not free does not run",
        "a job that runs is started a second time",
        " and type(slot.state) is Free]\n",
        "]\n",
        FENCED + "a_claim_for_a_slot_that_is_not_free_does_not_run",
    ),
    Guard(
        "A run that finds its root missing counts no attempt",
        "a directory that is moved away buries the jobs that begin before the next check",
        "        elif isinstance(ran, Failed) and ran.lost_root is not None:\n",
        "        elif False:\n",
        "tests/unit/worker/test_roots.py::"
        "test_a_run_that_finds_its_root_missing_is_deferred_and_those_after_it_do_not_begin",
    ),
    Guard(
        "A job of a missing root does not become the probe of a breaker",
        "the breaker waits for a probe that does not run",
        "        if self._roots.is_any_missing and task.path",
        "        self._breakers.admits(task.route, claim.key)\n        if self._roots.is_any_missing and task.path",
        "tests/unit/worker/test_roots.py::test_a_job_of_a_missing_root_does_not_become_the_probe_of_a_breaker",
    ),
    Guard(
        "A job without a handler is left to a running worker that has one",
        "during a rollout a worker of the old version kills the jobs of the new one",
        "(left := self._left.deferral(claim)):",
        "(left := self._left.deferral(claim)) and False:",
        DEFERRED + "a_job_without_a_handler_here_is_left_to_a_running_worker_that_has_one",
    ),
    Guard(
        "A job that waits for an open breaker is deferred",
        "it runs and fails",
        "(deferral := self._deferral(claim, task)) is not None:",
        "(deferral := self._deferral(claim, task)) is not None and False:",
        DEFERRED + "jobs_of_an_open_route_are_deferred_and_the_others_run",
    ),
    Guard(
        "A death is a failure for the breaker",
        "a handler that kills its process never opens the breaker",
        "return False if isinstance(outcome, Died) else None",
        "return None",
        FENCED + "a_death_is_a_failure_for_the_breaker",
    ),
    Guard(
        "A job with a number out of bounds is no job",
        "a job of another program ends every worker that claims it",
        "Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]",
        "Count: TypeAlias = Annotated[int, Meta(ge=0)]",
        "tests/unit/core/test_job.py::test_bytes_that_are_not_a_job_raise_undecodable_and_nothing_else",
    ),
    Guard(
        "A job with a size out of bounds is no job",
        "a number that does not fit into a message or a column ends the worker",
        "Bytes: TypeAlias = Annotated[int, Meta(ge=0, le=BYTES_MAX)]",
        "Bytes: TypeAlias = int",
        "tests/unit/core/test_job.py::test_bytes_that_are_not_a_job_raise_undecodable_and_nothing_else",
    ),
    Guard(
        "A job with a timeout out of bounds is no job",
        "a sum of times overflows and ends the worker",
        "Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST_S)]",
        "Seconds: TypeAlias = Annotated[float, Meta(ge=0)]",
        "tests/unit/core/test_job.py::test_bytes_that_are_not_a_job_raise_undecodable_and_nothing_else",
    ),
    Guard(
        "A job with two ids is no job",
        "the record and the claim are those of different jobs",
        "    if first and first != job.id.encode():\n",
        "    if False:\n",
        "tests/conformance/test_two_ids.py::test_a_claim_and_its_record_are_of_the_same_job",
    ),
    Guard(
        "The first fatal error is the one that is shown",
        "operators see a consequence instead of the cause",
        "            self.error = self.error or error\n",
        "            self.error = error\n",
        "tests/unit/runtime/test_fatal_error.py::test_the_first_error_is_kept_and_each_report_wakes",
    ),
    Guard(
        "A fatal error before the first wait ends the role too",
        "a process whose worker fails at once keeps running without running jobs",
        "            if self.error is not None:\n",
        "            if False:\n",
        "tests/unit/runtime/test_fatal_error.py::test_an_error_that_was_reported_before_anything_waits_wakes_too",
    ),
    Guard(
        "A role that a fatal error ends says so",
        "the process ends with code 0, and nothing starts it again",
        "            if fatal.error is not None:\n",
        "            if False:\n",
        "tests/integration/worker/test_foreign_jobs.py::test_a_worker_whose_loop_fails_ends_with_an_error",
    ),
    Guard(
        "A run once that a fatal error ends says so",
        "the process ends with code 0 although jobs wait",
        "        error = self._fatal.error or self._error\n",
        "        error = self._error\n",
        "tests/integration/worker/test_foreign_jobs.py::test_a_worker_whose_loop_fails_ends_with_an_error",
    ),
    Guard(
        "A worker whose loop fails ends",
        "its process keeps running without running jobs",
        "            self._on_failure(FileqError(",
        "            print(FileqError(",
        "tests/integration/worker/test_foreign_jobs.py::test_a_worker_whose_loop_fails_ends_with_an_error",
    ),
    Guard(
        "Waking a loop does not cut the pause of an outage short",
        "a loop keeps a broker that is down busy",
        "            self._stopping.wait(self._outage.failed(error))\n",
        "            self._wake.wait(self._outage.failed(error))\n",
        "tests/unit/runtime/test_loop.py::test_the_pause_of_an_outage_is_not_cut_short_by_being_woken",
    ),
    Guard(
        "A lost job's attempt is ended",
        "two workers run the job until both have ended",
        "            self._executor.abandon(claim.key)\n",
        "            pass\n",
        RENEWALS + "a_job_that_was_lost_is_abandoned_and_its_slot_is_free",
    ),
)

SLOT_GUARDS = (
    Guard(
        "The outcome of a lost claim is ignored",
        "it settles the next job of the slot",
        " and state.claim.token == key.token:",
        ":",
        SLOT + "a_running_slot_is_found_by_the_key_of_its_claim_only",
    ),
    Guard(
        "The slots say since when their process works",
        "`workers` shows no start time",
        "_PROCESS_STARTED_MS = wall_clock_ms()",
        "_PROCESS_STARTED_MS = 0",
        SLOT + "the_slots_say_since_when_their_process_works",
    ),
    Guard(
        "A new process never has the slots of an old one",
        "a restarted container takes over old claims",
        "{number}-{secrets.token_hex(4)}",
        "{number}-same",
        SLOT + "a_replaced_slot_has_a_new_id_and_is_free",
    ),
    Guard(
        "Heartbeats are renewed at a third of the ttl",
        "one slow renewal and a live worker is reaped",
        "self._every_s = config.worker.heartbeat_ttl / 3\n",
        "self._every_s = config.worker.heartbeat_ttl\n",
        RENEWALS + "heartbeats_are_renewed_after_a_third_of_their_time",
    ),
    Guard(
        "A slot that is gone continues under a new id",
        "it gets no more jobs",
        "            case LeaseStatus.GONE:\n                self._replace(slot)\n",
        "            case LeaseStatus.GONE:\n                pass\n",
        RENEWALS + "a_slot_that_is_gone_continues_under_a_new_id_and_ends_what_it_ran",
    ),
    Guard(
        "A job is cancelled once",
        "its handler gets a new grace period at each renewal",
        "if running is not None and not running.is_cancelling:",
        "if running is not None:",
        RENEWALS + "a_running_job_is_cancelled_once",
    ),
    Guard(
        "A job that a slot holds without knowing it is run",
        "it waits forever, because its slot is alive",
        "                return renewal.claim\n",
        "                return None\n",
        RENEWALS + "a_job_that_a_slot_holds_without_knowing_it_is_run",
    ),
)

CANCEL_GUARDS = (
    Guard(
        "A worker looks for cancellations when one was requested",
        "a job that is to be cancelled runs on until the next renewal",
        "        if self._cancel_requests not in (None, requests):\n",
        "        if False:\n",
        "tests/unit/worker/test_scheduler.py::test_a_request_to_cancel_running_jobs_is_passed_on_once",
    ),
    Guard(
        "Many cancellations cost a worker two renewals a second at most",
        "a client that cancels jobs one by one keeps the broker busy with renewals",
        "max(self._monotonic(), self._renewed_s + CANCELS_EVERY_S)",
        "self._monotonic()",
        RENEWALS + "many_reports_of_cancellations_share_a_renewal",
    ),
)

REAPER_GUARDS = (
    Guard(
        "One check is no proof that a slot is dead",
        "the jobs of a worker that reconnects run twice",
        "            if now_s >= silent[suspect.slot] + self._ttl_s / 3:\n",
        "            if True:\n",
        REAPING + "a_silent_slot_is_reaped_at_the_second_check_one_renewal_later",
    ),
    Guard(
        "After a reconnect checks count only after a ttl",
        "after a restart of Redis all live workers are reaped",
        "        if does_count and has_lease:\n",
        "        if has_lease:\n",
        REAPING + "checks_of_a_reaper_that_has_just_started_do_not_count",
    ),
    Guard(
        "A slot that is not registered is searched again for its second check",
        "its job is never given back",
        "        if is_sweep and has_lease and not self._silent_since_s:\n",
        "        if is_sweep and has_lease:\n",
        REAPING + "the_job_of_an_unregistered_slot_is_given_back",
    ),
    Guard(
        "An outage forgets what was silent before it",
        "the first check after an outage counts as the second",
        "            self._silent_since_s.clear()\n            raise\n",
        "            raise\n",
        REAPING + "a_check_before_an_outage_is_not_the_first_of_two",
    ),
    Guard(
        "An outage restarts the wait",
        "after an outage live workers are reaped",
        "            self._connected_s = None\n            self._silent",
        "            self._silent",
        REAPING + "after_an_outage_checks_count_only_once_the_connection_has_lasted_for_a_heartbeat",
    ),
    Guard(
        "A reaper reports only what it moved",
        "logs and metrics count a recovery twice",
        " if result is SettleResult.DONE]",
        "]",
        REAPING + "a_reaper_that_comes_too_late_reports_nothing",
    ),
    Guard(
        "Jobs of a process that is gone are given back after its handlers have ended",
        "a job runs beside its old handler",
        " if now_s >= since_s + CHILDREN_END_S]\n",
        "]\n",
        REAPING + "the_job_of_a_process_that_is_gone_is_given_back_half_a_second_after_the_first_turn",
    ),
    Guard(
        "A process of another machine is never called gone",
        "the jobs of a live worker run twice",
        "return bool(self.boot_id) and (self.boot_id, self.namespaces) == (other.boot_id, other.namespaces)",
        "return bool(self.boot_id)",
        GONE + "a_process_of_another_machine_or_namespace_is_never_gone",
    ),
    Guard(
        "A process that /proc hides is not called gone",
        "the jobs of a live worker of another user run twice",
        "return status is None or (",
        "return status is not None and (",
        GONE + "a_process_that_proc_hides_is_not_gone",
    ),
    Guard(
        "A process of which only the first thread has ended is not called gone",
        "the jobs of a live worker run twice",
        " and int(fields[17]) <= 1)",
        ")",
        GONE + "a_process_whose_first_thread_has_ended_is_not_gone",
    ),
)

WORKER_GUARDS = (*PUMP_GUARDS, *SLOT_GUARDS, *CANCEL_GUARDS, *REAPER_GUARDS)
