"""The guards of deadlines: which waiting jobs are overdue, and how they are buried."""

from tests.support.guards.guard import Guard, Promise

SUITE = "TestOverdue::test_"
WORKING, SCHEDULING = "tests/unit/worker/test_deadlines.py::test_", "tests/unit/worker/test_scheduler.py::test_"
PROGRAM = "tests/integration/worker/test_deadlines.py::test_"

LISTED = Promise(
    "A job with a deadline is in the index of deadlines",
    "a job in a paused queue never dies",
    SUITE + "a_job_is_overdue_at_its_deadline_and_not_before",
)
REVIVED = Promise(
    "A job that is put back has its deadline again",
    "a job that is put back into a paused queue never dies",
    SUITE + "a_job_that_is_put_back_after_its_deadline_is_overdue_again",
)
NOT_EARLY = Promise(
    "No job dies before its deadline",
    "jobs that could still run are dead after an hour",
    SUITE + "a_job_that_waits_for_days_is_overdue_at_its_deadline",
)
FORGOTTEN = Promise(
    "The index of deadlines forgets jobs that have ended, within an hour",
    "it grows by each job with a distant deadline",
    SUITE + "a_job_that_has_ended_is_forgotten_long_before_its_deadline",
)
LOOKED_AT_AGAIN = Promise(
    "A job that runs at its deadline stays in the index of deadlines",
    "a job that fails after its deadline waits for its backoff and dies only at its next claim",
    SUITE + "a_running_job_is_left_alone_and_looked_at_again_when_it_may_wait",
)
ONE_CALLER = Promise(
    "Of several workers one buries a job whose deadline has passed",
    "each worker searches the queues for the same jobs",
    SUITE + "a_job_that_was_returned_is_returned_again_if_its_worker_died",
)
CANCELLED = Promise(
    "A member of a cancelled batch is cancelled, also if its deadline has passed",
    "a batch that was cancelled has dead members",
    SUITE + "a_member_of_a_cancelled_batch_is_left_to_its_cancellation",
)
STAYS_LISTED = Promise(
    "A job that a worker claims at its deadline stays in the index of deadlines",
    "if it fails, it waits for its backoff and dies only at its next claim",
    SUITE + "a_job_that_was_claimed_meanwhile_is_not_touched",
)
SAME_BYTES = Promise(
    "A job that was retried or changed since it was read does not die of its deadline",
    "the count of its retries is lost",
    SUITE + "a_job_that_waits_with_other_bytes_by_then_is_not_touched",
)
COPIES_COUNTED = Promise(
    "A job that dies of its deadline in a queue is no longer counted there",
    "a copy that another program pushed is not counted as adopted, and fsck finds a drift",
    SUITE + "a_copy_that_another_program_pushed_stays_in_its_queue",
)
MOURNED = Promise(
    "The order and the follow-ups of a job that dies of its deadline are kept in the same step",
    "its file is never moved, and `on_dead` does not run",
    SUITE + "the_order_and_the_follow_ups_of_an_overdue_job_are_kept",
)
IN_ITS_PLACE = Promise(
    "A job that has left its place does not die of its deadline",
    "a job is dead and runs",
    SUITE + "a_job_that_is_not_where_its_record_says_is_left_to_a_repair",
)
REPAIRED = Promise(
    "A job that is not where its record says is not searched for again at its deadline",
    "each worker reads a whole queue again and again",
    SUITE + "a_job_that_is_not_where_its_record_says_is_left_to_a_repair",
)

DEADLINE_GUARDS = (
    LISTED.on("rules", "        work.index_deadline(record)\n    due_ms", "    due_ms"),
    LISTED.on("redis", "  index_deadline(id, deadline)\n", ""),
    Guard(
        "A single job with a deadline is in the index of deadlines on Redis",
        "a job in a paused queue never dies",
        " or entry.job.deadline is not None",
        "",
        "tests/conformance/test_brokers.py::TestBrokers::" + LISTED.test,
        "redis",
    ),
    REVIVED.on("rules", "        work.index_deadline(record)\n        work.push", "        work.push"),
    REVIVED.on("redis", "      if deadlines[i] then index_deadline(id, deadlines[i]) end\n", ""),
    NOT_EARLY.on("rules", "    if deadline_ms > now_ms:\n", "    if False:\n"),
    NOT_EARLY.on("redis", "    if deadline > now then\n", "    if false then\n"),
    FORGOTTEN.on("rules", "min(deadline_ms, self.now_ms + LONGEST_LOOK_MS)", "deadline_ms"),
    FORGOTTEN.on("redis", "math.min(tonumber(deadline), now + LONGEST_LOOK)", "tonumber(deadline)"),
    LOOKED_AT_AGAIN.on(
        "sqlite", "UPDATE deadlines SET look_ms = ? WHERE id = ?", "DELETE FROM deadlines WHERE ? AND id = ?"
    ),
    LOOKED_AT_AGAIN.on(
        "redis",
        "    redis.call('ZADD', DEADLINES, int_text(now + again), id)\n",
        "    redis.call('ZREM', DEADLINES, id)\n",
    ),
    ONE_CALLER.on("rules", "now_ms + RETURNED_LOOK_MS)\n", "now_ms)\n"),
    ONE_CALLER.on("redis", "again, left = returned_look, left - #raw", "again, left = 0, left - #raw"),
    CANCELLED.on("rules", "    if not is_ours or is_batch_cancelled(work, record):\n", "    if not is_ours:\n"),
    CANCELLED.on("redis", " and not (was[4] and is_batch_cancelled(was[4], id) == 1)", ""),
    STAYS_LISTED.on("rules", "    if not State(record.state).is_waiting:\n", "    if False:\n"),
    STAYS_LISTED.on("redis", "  if not is_waiting or was[2]", "  if was[2]"),
    IN_ITS_PLACE.on(
        "rules",
        "    if not take_waiting(work, record):\n        return SettleResult.FENCED\n",
        "    take_waiting(work, record)\n",
    ),
    IN_ITS_PLACE.on("redis", "  if not is_taken then return 'fenced' end\n  local queued", "  local queued"),
    SAME_BYTES.on(
        "rules", "(record.raw, record.queue) != (s.claim.raw, s.claim.queue)", "record.queue != s.claim.queue"
    ),
    SAME_BYTES.on("redis", " or was[2] ~= job.raw", ""),
    COPIES_COUNTED.on("redis", "  if was[1] == 'pending' then queued = math.max(0, queued - 1) end\n", ""),
    MOURNED.on("redis", "  keep_order(job)\n  add_event(job.event)\n  keep_member(job)\n  return", "  return"),
    REPAIRED.on("rules", "    position = work.take_deadline(record.id)\n", "    position = None\n"),
    REPAIRED.on("redis", "  redis.call('ZREM', DEADLINES, id)\n  if not is_taken", "  if not is_taken"),
    Guard(
        "SQLite finds a job in a long queue at its deadline without reading the queue",
        "each deadline holds the lock of the database for a second, with a million jobs in the queue",
        "        work.queued.locate_at(record.queue, record.raw, position)\n",
        "        pass\n",
        "tests/integration/sqlite/test_deadlines.py::test_a_job_in_a_long_queue_is_buried_without_reading_the_queue",
    ),
    Guard(
        "A position of the index of deadlines counts only if the job is there",
        "another job is deleted",
        " AND position = ? AND raw = ?",
        " AND position = ? AND ? != 0",
        "tests/integration/sqlite/test_deadlines.py::test_another_job_at_the_position_of_the_index_stays",
    ),
    Guard(
        "A worker looks at deadlines when the first of them has passed",
        "a job in a paused queue never dies",
        "            self._deadline_reached()\n",
        "            pass\n",
        SCHEDULING + "it_sleeps_until_the_next_deadline_and_then_wakes_the_loop_that_looks_at_it",
    ),
    Guard(
        "The scheduler sleeps no longer than until the next deadline",
        "a job dies up to a second after its deadline",
        "(promoted.next_due_ms, fires_ms, deadline_ms)",
        "(promoted.next_due_ms, fires_ms)",
        SCHEDULING + "it_sleeps_until_the_next_deadline_and_then_wakes_the_loop_that_looks_at_it",
    ),
    Guard(
        "The scheduler does not turn without a pause until a deadline that has passed is looked at",
        "it keeps the broker busy",
        "            deadline_ms = None  # until",
        "            pass  # until",
        SCHEDULING + "it_sleeps_until_the_next_deadline_and_then_wakes_the_loop_that_looks_at_it",
    ),
    Guard(
        "The program has a loop for deadlines, and its scheduler wakes it",
        "a job in a paused queue never dies",
        "deadline_reached=deadlines.wake.set",
        "deadline_reached=lambda: None",
        PROGRAM + "a_job_in_a_paused_queue_dies_at_its_deadline_with_everything_that_follows",
    ),
    Guard(
        "A waiting job that dies of its deadline has the order for its file",
        "its file stays in the inbox",
        "self._add_follow_ups(with_order(settlement, claim.version, self._rules))",
        "self._add_follow_ups(settlement)",
        WORKING + "a_waiting_job_dies_at_its_deadline_as_one_that_a_worker_refuses",
    ),
    Guard(
        "A waiting job that dies of its deadline has its `on_dead`",
        "what must happen after a job does not happen",
        "self._add_follow_ups(with_order(settlement, claim.version, self._rules))",
        "with_order(settlement, claim.version, self._rules)",
        WORKING + "a_waiting_job_dies_at_its_deadline_as_one_that_a_worker_refuses",
    ),
    Guard(
        "Only a job whose own bytes have a deadline that has passed dies of it",
        "what another program pushed under the id of a job dies of the deadline of that job",
        "for claim in claims if is_overdue(claim)]",
        "for claim in claims]",
        WORKING + "bytes_without_a_deadline_that_have_the_record_of_the_job_wait_on",
    ),
    Guard(
        "A job that a worker claims at its deadline is not reported as dead",
        "hooks, metrics and logs count a death that did not happen",
        "            if result is SettleResult.DONE:\n                self._report(settlement)\n",
        "            self._report(settlement)\n",
        WORKING + "a_job_that_another_worker_claims_first_is_not_reported",
    ),
    Guard(
        "Many jobs whose deadline has passed die without a pause",
        "500 of them die in a second",
        "        return 0.0 if len(claims) == PAGE else IDLE_S\n",
        "        return IDLE_S\n",
        WORKING + "a_full_batch_is_followed_by_the_next_without_a_pause",
    ),
    Guard(
        "A deadline that passes while others are looked at is not forgotten",
        "a job dies a second late",
        "        self.wake.clear()\n        claims = self._broker.overdue(PAGE)\n",
        "        claims = self._broker.overdue(PAGE)\n        self.wake.clear()\n",
        WORKING + "a_request_to_look_that_comes_during_a_look_is_kept",
    ),
)
