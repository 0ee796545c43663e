"""The guards of schedules and of the catalog: each slot fires once, and no change is lost."""

from tests.support.guards.guard import Guard, Promise

STALE_PYTHON = "(state.revision, state.next_ms) != (fire.revision, fire.slot_ms)"
ON_REDIS = "tests/integration/redis/test_schedules.py::test_"

ONCE = Promise(
    "Each slot of a schedule fires once, whatever the number of schedulers",
    "every scheduler enqueues a job for the same time",
    "TestFire::test_a_repeat_is_stale",
)
NOT_DUE = Promise(
    "A schedule that was paused, removed or changed does not fire",
    "a schedule runs after its pause has begun, or by its old definition",
    "TestFire::test_what_is_not_due_is_stale_and_changes_nothing",
)
SAME_JOB = Promise(
    "A slot whose job has a record enqueues no second one",
    "a changed definition fires the last slot again",
    "TestFire::test_a_job_that_has_a_record_is_not_enqueued_again",
)
SKIPPED = Promise(
    "With `overlap: skip` there is no new job while the last one is unfinished",
    "runs of a slow job pile up",
    "TestFire::test_skip_counts_the_slot_as_missed",
)
WAITS = Promise(
    "With `overlap: queue` a job waits until the last one has ended",
    "two runs of a schedule work side by side",
    "TestFire::test_queue_blocks_the_new_job_until_the_last_one_has_ended",
)
WITHDRAWN = Promise(
    "With `overlap: cancel` the last job is cancelled in the step that enqueues the new one",
    "both run",
    "TestFire::test_cancel_withdraws_a_last_job_that_waits",
)
RESUMED_ONCE = Promise(
    "A repeated resume does not move the next slot of a schedule",
    "a slot that fired since fires again",
    "TestSchedules::test_a_repeated_resume_does_not_move_the_next_slot",
)
SAME_REVISION = Promise(
    "A definition that is known does not move the next slot",
    "every worker that starts delays the schedule",
    "TestSchedules::test_the_same_revision_changes_nothing",
)
EXPECTED = Promise(
    "A document that was changed since it was read is not replaced",
    "of two operators, one loses the change",
    "TestCatalog::test_a_document_that_was_changed_since_it_was_read_is_not_replaced",
)
REPEATED = Promise(
    "A document that is written again has the same revision",
    "after a lost reply the repeat is a conflict",
    "TestCatalog::test_a_repeat_returns_the_same_revision",
)
REMOVAL_SEEN = Promise(
    "A removal changes the revision of its kind",
    "workers keep a webhook that was removed",
    "TestCatalog::test_a_removed_document_is_gone_and_a_repeat_has_no_effect",
)

SCHEDULE_GUARDS: tuple[Guard, ...] = (
    ONCE.on("redis", " or next_ms ~= slot or", " or"),
    ONCE.on("rules", STALE_PYTHON, "state.revision != fire.revision"),
    NOT_DUE.on("redis", " or is_paused ~= '0' then", " then"),
    NOT_DUE.on("redis", "if found ~= revision or", "if not found or"),
    NOT_DUE.on("rules", "if state is None or state.is_paused or", "if state is None or"),
    SAME_JOB.on("redis", "  if has_record(record, ARGV[entry + ENTRY.origin]) then return 'duplicate' end\n", ""),
    SAME_JOB.on("rules", "    if has_record(work, entry):\n", "    if False:\n"),
    SKIPPED.on("redis", "  if is_unfinished and overlap == 'skip' then return 'skipped' end\n", ""),
    SKIPPED.on("rules", "unfinished_id and fire.overlap is Overlap.SKIP:", "False:"),
    WAITS.on("redis", " or is_awaited and UNFINISHED[state] then", " then"),
    WAITS.on("redis", "waits and from_one_line(last_id) or nil", "nil"),
    WAITS.on(
        "rules",
        "    if awaited is not None and State(awaited.state).is_unfinished:\n",
        "    if False:\n",
    ),
    WITHDRAWN.on("redis", "  if is_unfinished and overlap == 'cancel' then cancel_last() end\n", ""),
    WITHDRAWN.on("rules", "unfinished_id and fire.overlap is Overlap.CANCEL:", "False:"),
    RESUMED_ONCE.on(
        "redis",
        "next_ms=next_ms) if was is not None and was.is_paused else was",
        "next_ms=next_ms) if was is not None else was",
    ),
    RESUMED_ONCE.on(
        "rules", "            if state is None or not state.is_paused:\n", "            if state is None:\n"
    ),
    SAME_REVISION.on(
        "redis",
        "            if was is not None and was.revision == revision:\n",
        "            if False:\n",
    ),
    SAME_REVISION.on(
        "rules",
        "            if was is not None and was.revision == revision:\n",
        "            if False:\n",
    ),
    EXPECTED.on(
        "redis",
        "if expected ~= '' and expected ~= revision then return { 0, tonumber(revision) } end\nlocal next_revision",
        "local next_revision",
    ),
    EXPECTED.on(
        "redis",
        "if expected ~= '' and expected ~= revision then return { 0, tonumber(revision) } end\nredis.call('HINCRBY'",
        "redis.call('HINCRBY'",
    ),
    EXPECTED.on("rules", "    if expected is not None and expected != found:\n", "    if False:\n"),
    REPEATED.on("redis", "if was and old == body then return { 1, tonumber(revision) } end\n", ""),
    REPEATED.on("rules", "            if was is not None and was.body == body:\n", "            if False:\n"),
    REMOVAL_SEEN.on(
        "redis",
        "redis.call('HINCRBY', revisions, kind, 1)\nredis.call('HDEL', documents",
        "redis.call('HDEL', documents",
    ),
    REMOVAL_SEEN.on("rules", "            work.next_revision(kind)\n            work", "            work"),
    Guard(
        "A schedule that was fired since it was read is not overwritten",
        "a pause makes a slot fire twice",
        "if (redis.call('HGET', states, name) or '') ~= was then return 0 end\n",
        "",
        ON_REDIS + "a_pause_does_not_undo_a_slot_that_fires_meanwhile",
    ),
    Guard(
        "A job that is cancelled far from the front of its queue is cancelled too",
        "with `overlap: cancel` both jobs run when the queue is long",
        "            cancel_by_id(store, [id], {id: fire.cancel_follow_ups})\n",
        "            pass\n",
        ON_REDIS + "a_last_job_far_from_the_front_of_its_queue_is_cancelled",
    ),
    Guard(
        "A job that a killed scheduler could not cancel is asked to stop when it runs",
        "with `overlap: cancel` both jobs run to their end",
        "    redis.call('HSET', last_record, 'cancel', '1')\n",
        "",
        ON_REDIS + "a_scheduler_killed_before_it_cancels_a_job_far_from_the_front_leaves_the_request",
    ),
)
