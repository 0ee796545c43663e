"""The guards of batches in the brokers: each member is counted once, each callback fires once, and in which order."""

from tests.support.guards.guard import Guard, Promise

COUNTED_ONCE = Promise(
    "A member of a batch is counted once",
    "a batch finishes before its last job has ended",
    "TestBatchJoin::test_members_that_ended_without_being_counted_are_counted",
)
FIRED_ONCE = Promise(
    "Each callback of a batch is enqueued once",
    "`finally` runs again after a dead job is retried",
    "TestBatchEnds::test_finally_never_fires_twice",
)
TAKES_NONE = Promise(
    "A batch that is sealed takes no jobs from outside",
    "jobs are added after the callbacks have run",
    "TestBatch::test_a_batch_that_takes_no_jobs_refuses_them_and_nothing_changes",
)
OWN_FOLLOW_UPS = Promise(
    "Only a member of a sealed batch adds follow-ups to it",
    "jobs are added after the callbacks have run",
    "TestBatchJoin::test_a_follow_up_of_a_job_outside_joins_only_an_open_batch",
)
FOLLOW_UPS_FIRST = Promise(
    "The follow-ups of a member join its batch before the member is counted",
    "the batch finishes although its jobs have added others",
    "TestBatchJoin::test_follow_ups_that_join_are_counted_before_the_job_that_they_follow",
)
CALLBACKS_FIRST = Promise(
    "The callbacks of a batch join its parent before the parent counts the batch",
    "the parent finishes before the callbacks of its last child have run",
    "TestBatchNesting::test_the_callbacks_of_a_child_are_members_of_its_parent",
)
FLAGGED = Promise(
    "A claim of a member says that its batch is cancelled",
    "the jobs of a cancelled batch run",
    "TestBatchCancel::test_a_cancelled_batch_is_sealed_and_its_members_are_cancelled_when_claimed",
)
REOPENED = Promise(
    "A dead member that is revived makes its batch unfinished",
    "`then` never fires although all jobs have completed in the end",
    "TestBatchEnds::test_a_revived_member_makes_the_batch_unfinished_and_then_may_still_fire",
)
RUNS_AGAIN = Promise(
    "A retry of a dead job lifts the cancellation of its batch, and of the batches around it",
    "the job is cancelled instead of run, although the operator was told that it was retried",
    "TestBatchCancel::test_a_revival_lifts_the_cancellation_of_the_batches_around",
)
STILL_MEMBER = Promise(
    "A member whose record is lost stays a member until it is counted",
    "its batch never finishes",
    "TestBatchJoin::test_members_that_ended_without_being_counted_are_counted",
)

MEMORY_FIRE = "    _fire(store, batch, due, now_ms)\n"
MEMORY_REST = """    store.finished_batches.append(facts.id)
    store.publish(now_ms, wire_events.batch_finished(facts))
    parent = store.batches.get(facts.parent)
    if parent is not None and not facts.is_counted:
        _fire(store, parent, rules.count_child(parent.facts, facts), now_ms)
        finish_if_done(store, parent, now_ms)
"""
SQLITE_FIRE = "    _fire(work, work.change_batch(batch), due)\n"
SQLITE_REST = """    work.finished_batches.append(batch.id)
    work.publish(wire_events.batch_finished(batch) if work.has_subscribers else b"")
    parent = work.batches.get(batch.parent)
    if parent is not None and not batch.is_counted:
        _fire(work, parent, rules.count_child(work.change_batch(parent), batch))
        finish_if_done(work, parent)
"""


def _callbacks_last(fire: str, rest: str) -> tuple[str, str]:
    """The lines that finish a batch, and the same lines with the callbacks after the parent."""
    return fire + rest, rest + fire


BATCH_COUNT_GUARDS = (
    COUNTED_ONCE.on(
        "redis",
        "  if redis.call('SREM', batch.key .. ':members', member) == 0 then return false end\n",
        "  redis.call('SREM', batch.key .. ':members', member)\n",
    ),
    COUNTED_ONCE.on(
        "rules",
        "    if batch is None or not work.members.take(batch, id, MemberState.UNFINISHED):\n",
        "    if batch is None:\n",
    ),
    FIRED_ONCE.on("redis", "  if string.find(batch.fired, kind, 1, true) then return end\n", ""),
    FIRED_ONCE.on("memory", " if c.kind is kind and kind not in batch.fired]", " if c.kind is kind]"),
    TAKES_NONE.on("redis", " batch.state == 'open' and batch.is_cancelled ~= '1'\n", " true\n"),
    TAKES_NONE.on(
        "memory",
        "        return self.state is BatchState.OPEN and not self.is_cancelled\n",
        "        return not self.is_cancelled\n",
    ),
    OWN_FOLLOW_UPS.on(
        "redis",
        "  if follows ~= id and (not is_batch_open(id) or string.sub(id, 1, 9) == 'delivery-') then return nil end\n",
        "",
    ),
    OWN_FOLLOW_UPS.on("rules", "    return batch if is_member else None\n", "    return batch\n"),
    FOLLOW_UPS_FIRST.on(
        "redis",
        "  keep_follow_ups(job, job.extras and followed_batch(batch, id))\n"
        "  if batch and ENDINGS[ending] then count_member(batch, id, ending, job.error) end\n",
        "  if batch and ENDINGS[ending] then count_member(batch, id, ending, job.error) end\n"
        "  keep_follow_ups(job, job.extras and followed_batch(batch, id))\n",
    ),
    FOLLOW_UPS_FIRST.on(
        "rules",
        "    add_follow_ups(work, record, s.follow_ups)\n"
        "    if record is not None and record.batch and (ending := ENDINGS.get(s.verb)) is not None:\n"
        "        count_member(work, record.batch, record.id, ending, s.error)\n",
        "    if record is not None and record.batch and (ending := ENDINGS.get(s.verb)) is not None:\n"
        "        count_member(work, record.batch, record.id, ending, s.error)\n"
        "    add_follow_ups(work, record, s.follow_ups)\n",
    ),
    CALLBACKS_FIRST.on(
        "redis",
        "    if is_success(batch) then fire_callback(batch, 'then') end\n",
        "    if is_success(batch) and batch.parent == '' then fire_callback(batch, 'then') end\n",
    ),
    CALLBACKS_FIRST.on("rules", *_callbacks_last(SQLITE_FIRE, SQLITE_REST)),
    FLAGGED.on("redis", "was and was[4])\n", "nil)\n"),
    FLAGGED.on(
        "rules",
        "    if record.batch and is_batch_cancelled(work, record):\n",
        "    if False:\n",
    ),
    REOPENED.on("rules", "        revive_member(work, record.batch, record.id)\n", ""),
    REOPENED.on("redis", "      if batch_ids[i] then revive_member(batch_ids[i], id) end\n", ""),
    RUNS_AGAIN.on("rules", "        batch = work.batches.get(batch.parent)\n", "        batch = None\n"),
    RUNS_AGAIN.on(
        "redis",
        "    batch = batch.parent ~= '' and batch_of(batch.parent)\n    if not batch then return end\n",
        "    return\n",
    ),
    STILL_MEMBER.on("sqlite", "WHEN OLD.member IS NOT NULL\n", "WHEN false\n"),
    Guard(
        "Wrong counts of a batch are reported only if two checks find them",
        "fsck reports a batch whose jobs were ending",
        "        found.batch_faults = batches.confirmed()\n",
        "        found.batch_faults = batches.faults\n",
        "tests/conformance/test_fsck_batches.py::test_counts_that_are_right_at_the_second_check_are_not_reported",
    ),
    Guard(
        "A repair counts members only after the jobs are repaired",
        "a job that gets its record back counts as deleted in its batch",
        "        if len(repairs.done) == done_before:\n            # Not",
        "        if True:\n            # Not",
        "tests/conformance/test_fsck_batches.py::test_a_member_that_only_lost_its_record_is_not_counted_as_deleted",
    ),
    Guard(
        "A cancellation reads a bounded number of child batches",
        "a batch with very many stops every process on SQLite while it is cancelled",
        " AND finished_ms = 0 ORDER BY id LIMIT ?",
        " AND ? > 0 ORDER BY id",
        "tests/integration/sqlite/test_transactions.py"
        "::test_of_very_many_child_batches_one_cancellation_reads_a_bounded_number",
    ),
    Guard(
        "Child batches that a cancellation left are cancelled without a pause",
        "the jobs of 50,000 child batches run for hours after their parent was cancelled",
        "(0.0 if was_any else EVERY_S",
        "(0.0 if False else EVERY_S",
        "tests/unit/worker/test_batch_reconciler.py::test_all_child_batches_of_a_cancelled_one_are_cancelled_without_a_pause",
    ),
    Guard(
        "The dead members of a batch are put back in the order of the dead-letter list",
        "a retry of a large batch keeps the server busy with passes over that list",
        "parts(sorted(died), MEMBERS_PAGE)",
        "parts(died, MEMBERS_PAGE)",
        "tests/integration/redis/test_long_lists.py"
        "::test_the_dead_members_of_a_batch_are_put_back_in_the_order_of_the_list",
    ),
)
