"""The guards of follow-ups, outputs, unique keys and clear: jobs and keys that change together with another job."""

from tests.support.guards.guard import Guard, Promise

FOLLOWED = Promise(
    "Follow-ups are enqueued in the step that settles their job",
    "a worker that is killed between the two loses them",
    "TestFollowUp::test_they_are_enqueued_with_every_verb",
)
REAPED = Promise(
    "A reaper enqueues the follow-ups of the jobs that it settles",
    "`on_dead` does not run for a job whose workers died",
    "TestFollowUp::test_a_reaper_brings_them",
)
CANCELLED = Promise(
    "The follow-ups of a waiting job that is cancelled are enqueued in the same step",
    "a cancellation has no webhook delivery",
    "TestFollowUp::test_a_waiting_job_that_is_cancelled_brings_them",
)
ONCE = Promise(
    "A follow-up whose id has a record is left out",
    "a job that runs again doubles its follow-ups",
    "TestFollowUp::test_one_whose_id_has_a_record_is_left_out",
)
CHECKED = Promise(
    "A wrong follow-up is refused before anything changes",
    "half of a batch is settled, and a follow-up waits in a queue that no worker reads",
    "TestFollowUp::test_a_wrong_one_is_refused_before_anything_changes",
)
NAMED = Promise(
    "The record of a job names its follow-ups",
    "operators do not find the jobs that a job made",
    "TestFollowUp::test_the_record_of_the_job_keeps_their_ids",
)
MAKER = Promise(
    "The job that made a file is found by the path",
    "operators do not find out where a file came from",
    "TestOutputs::test_the_maker_of_a_path_is_found",
)
UNIQUE = Promise(
    "Of all unfinished jobs, one has a unique key",
    "the same work is done twice",
    "TestUniqueKey::test_a_second_job_with_the_key_is_a_duplicate_that_names_the_first",
)
FREE_AGAIN = Promise(
    "A job that has ended has no unique key",
    "the key is taken forever",
    "TestUniqueKey::test_an_ended_job_has_no_key_and_any_other_keeps_it",
)
STAYS_DEAD = Promise(
    "A dead job whose unique key another job has stays dead",
    "`dlq retry` runs the same work twice",
    "TestUniqueKey::test_a_dead_job_whose_key_is_taken_stays_dead_and_the_holder_is_named",
)
TAKEN_AGAIN = Promise(
    "A job that is put back takes its unique key again",
    "the same work is done twice after `dlq retry`",
    "TestUniqueKey::test_a_revived_job_takes_its_key_again",
)
TAKEN_WITHOUT_RECORD = Promise(
    "A job without a record that is put back takes its unique key again",
    "the same work is done twice after `dlq retry`",
    "TestUniqueKey::test_a_revived_job_without_a_record_takes_its_key",
)
SWEPT = Promise(
    "A sweep keeps the unique keys of unfinished jobs",
    "the same work is done twice",
    "TestUniqueKey::test_a_sweep_keeps_the_keys_of_unfinished_jobs",
)
CLEARED = Promise(
    "A job that is cleared leaves its queue in the same step",
    "a cancelled job runs",
    "TestClear::test_waiting_jobs_become_cancelled",
)
ELSEWHERE = Promise(
    "A copy of a job that runs or is scheduled is not cleared",
    "a running job is shown as cancelled, and its record expires",
    "TestClear::test_a_copy_of_a_job_that_runs_or_is_scheduled_stays",
)
ADOPTED = Promise(
    "A job of another program that is cleared is counted",
    "`fsck` reports a drift after `clear`",
    "TestClear::test_a_job_that_another_program_pushed_is_cancelled_too",
)

FOLLOW_UP_GUARDS: tuple[Guard, ...] = (
    FOLLOWED.on("redis", "    if keep_hook then keep_hook(job) end\n", ""),
    FOLLOWED.on("rules", "    add_follow_ups(work, record, s.follow_ups)\n", ""),
    REAPED.on("redis", "  keep_member(job)\nend\n", "end\n"),
    CANCELLED.on("redis", "  withdraw_member(job)\n  return 'cancelled'\n", "  return 'cancelled'\n"),
    CANCELLED.on("rules", "    add_follow_ups(work, record, follow_ups)\n", ""),
    ONCE.on("redis", "  if has_record(record, ARGV[a + ENTRY.origin]) then return ARGV[a + ENTRY.id] end\n", ""),
    ONCE.on(
        "rules",
        "        if not existing_job(work, entry):\n            add(work, entry, batch=batch_to_join",
        "        if True:\n            add(work, entry, batch=batch_to_join",
    ),
    CHECKED.on(
        "redis",
        "        check_follow_ups((s.follow_ups for s in carrying), self._store.queues)\n",
        "",
    ),
    CHECKED.on(
        "redis",
        "        check_follow_ups(wanted.values(), self._store.queues)\n        return cancel_by_id(",
        "        return cancel_by_id(",
    ),
    NAMED.on("redis", "  redis.call('HSET', parent, 'follow_ups',", "  redis.call('HSET', parent, 'x',"),
    NAMED.on("rules", "    if parent is not None and added:\n", "    if False:\n"),
    MAKER.on("redis", "redis.call('SET', KEYS[extras.made + i], id, 'PX', HISTORY_TTL)", "id = id"),
    MAKER.on("rules", "    if outputs:\n", "    if False:\n"),
    UNIQUE.on("redis", "key ~= '' and not is_recorded[record] and key_holder(unique, key)", "false"),
    UNIQUE.on("rules", "else key_holder(work, job.unique_key)", 'else ""'),
    FREE_AGAIN.on("redis", " and UNFINISHED[was[1]] and id or nil", " and id or nil"),
    FREE_AGAIN.on("rules", " and State(record.state).is_unfinished\n", "\n"),
    STAYS_DEAD.on("redis", "  if holder and holder ~= id then answers[i] = 'held ' .. holder end\n", ""),
    STAYS_DEAD.on("rules", "    if holder and holder != revival.id:\n", "    if False:\n"),
    TAKEN_AGAIN.on("redis", "        redis.call('HSET', unique, key, id)\n", ""),
    TAKEN_WITHOUT_RECORD.on("redis", "        redis.call('HSET', record, 'unique_key', key)\n", ""),
    TAKEN_AGAIN.on("rules", "        take_key(work, record, job.unique_key)\n", ""),
    SWEPT.on("redis", " and not key_holder(unique, key)", ""),
    SWEPT.on("rules", " in page if not is_holder(work.records.get(id), key)]", " in page]"),
    CLEARED.on("redis", "  redis.call('LREM', list, -#taken, mark)\n", ""),
    CLEARED.on("rules", "    work.queued.remove_anywhere(queue, taken)\n", ""),
    ELSEWHERE.on("redis", "#offsets > 0 and not is_elsewhere then", "#offsets > 0 then"),
    ELSEWHERE.on(
        "rules",
        "    if found is not None and State(found.state).is_unfinished and found.state != State.PENDING:\n",
        "    if False:\n",
    ),
    ADOPTED.on("redis", "    if queued == 0 then count('adopted') end\n", ""),
    ADOPTED.on("rules", '        work.count("adopted")\n    return record\n', "        pass\n    return record\n"),
)
