"""The guards of jobs that are claimed in advance."""

from tests.support.guards.guard import Guard

AHEAD, POLICY = (f"tests/unit/worker/test_{name}.py::test_" for name in ("pump_prefetch", "prefetch"))

PREFETCH_GUARDS = (
    Guard(
        "No more than `worker.count` jobs run",
        "jobs that were claimed in advance run beside the others",
        "        room = 0 if self._waiting else self._room_for_new\n",
        "        room = len(new)\n",
        AHEAD + "while_jobs_are_tiny_more_are_claimed_than_run",
    ),
    Guard(
        "A changed file keeps its place among the running jobs",
        "its task comes back and is one too many",
        "        return max(0, self._room - len(self._changed))\n",
        "        return self._room\n",
        AHEAD + "a_changed_file_keeps_its_place_among_those_that_run",
    ),
    Guard(
        "A stopping worker begins nothing that it claimed in advance",
        "jobs begin after the stop signal",
        "        if self.is_quiet:\n            self._release(self._take_waiting())\n",
        "        if False:\n            self._release(self._take_waiting())\n",
        AHEAD + "a_worker_that_stops_releases_what_waits_in_its_next_turn_and_finishes_what_runs",
    ),
    Guard(
        "What was claimed in advance and waits for slow jobs is given back",
        "tiny jobs wait behind slow ones although another worker is free",
        "        if self._waiting and self._monotonic() >= self._waiting_due_s:\n",
        "        if False:\n",
        AHEAD + "what_has_waited_too_long_goes_back_to_the_front_of_its_queue_in_its_order",
    ),
    Guard(
        "After that nothing is claimed in advance for a while",
        "the same jobs are claimed and given back again and again",
        "            self._prefetch.give_up()\n",
        "",
        AHEAD + "after_that_no_more_is_claimed_than_runs",
    ),
    Guard(
        "The pump turns when a claim has waited too long",
        "it is given back when the next job ends, or at the next renewal",
        "        due_s = min(self._heartbeats.due_s, self._waiting_due_s)\n",
        "        due_s = self._heartbeats.due_s\n",
        AHEAD + "what_has_waited_too_long_goes_back_to_the_front_of_its_queue_in_its_order",
    ),
    Guard(
        "Only tiny jobs are claimed in advance",
        "jobs wait behind jobs that take long",
        "        are_tasks_short = self._mean_running <= self._rate * TURNOVER_S\n",
        "        are_tasks_short = True\n",
        POLICY + "slots_that_take_longer_for_a_job_claim_nothing_in_advance",
    ),
    Guard(
        "A worker with little to do claims nothing in advance",
        "a job waits in one worker while another one is idle",
        " and self._rate * CYCLE_S >= self._count",
        "",
        POLICY + "a_worker_with_little_to_do_claims_nothing_in_advance",
    ),
    Guard(
        "A worker with one slot claims nothing in advance",
        "its jobs do not run strictly in the order of their queue",
        "if is_allowed and count > 1 else 0\n",
        "if is_allowed else 0\n",
        POLICY + "a_worker_with_one_slot_claims_nothing_in_advance_so_that_its_jobs_keep_their_order",
    ),
    Guard(
        "Nothing is claimed in advance with limited routes",
        "jobs that only wait count as running, or do not count at all",
        "is_allowed=not self._limits.is_any,",
        "is_allowed=True,",
        AHEAD + "a_worker_with_a_limited_route_claims_nothing_in_advance",
    ),
    Guard(
        "Nothing is claimed in advance while a breaker is not closed",
        "more jobs meet the open breaker than without it",
        "        return self._prefetch.depth if self._breakers.is_closed and not self.is_quiet else 0\n",
        "        return self._prefetch.depth if not self.is_quiet else 0\n",
        AHEAD + "nothing_is_claimed_in_advance_while_a_breaker_is_not_closed",
    ),
    Guard(
        "The leases of claims that wait are renewed",
        "they are lost, and run in two workers",
        "isinstance(slot.state, Waiting | Running | Settling)",
        "isinstance(slot.state, Running | Settling)",
        AHEAD + "renewals_name_what_waits",
    ),
    Guard(
        "A job that is cancelled before it begins does not begin",
        "it runs although its cancellation was confirmed",
        "            case LeaseStatus.CANCEL if isinstance(slot.state, Waiting):\n",
        "            case LeaseStatus.CANCEL if False:\n",
        AHEAD + "a_job_that_is_cancelled_while_it_waits_never_begins",
    ),
    Guard(
        "A claim that is lost before its job begins does not begin",
        "two workers run the job",
        "            case LeaseStatus.LOST if running is not None or is_waiting:\n",
        "            case LeaseStatus.LOST if running is not None:\n",
        AHEAD + "a_job_that_is_lost_while_it_waits_never_begins",
    ),
    Guard(
        "Extra slots that hold jobs stay registered",
        "a job that was claimed in advance is given back while this worker runs it",
        "        if not all(type(slot.state) is Free for slot in extra):\n",
        "        if False:\n",
        AHEAD + "extra_slots_that_hold_jobs_stay_registered",
    ),
    Guard(
        "Operators see `worker.count` slots",
        "`workers` shows slots that no job can run in",
        "    slots = sum(not view.info.is_extra for view in views)\n",
        "    slots = len(views)\n",
        "tests/integration/cli/test_stats.py::test_slots_for_jobs_that_are_claimed_in_advance_are_not_shown",
    ),
)
