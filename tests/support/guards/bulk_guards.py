"""The guards of actions on many jobs and files."""

from tests.support.guards.guard import Guard, Promise

BULK = "tests/conformance/test_bulk_actions.py::test_"
FILES = "tests/conformance/test_reprocess.py::test_"
TWICE = "an action takes a job a second time"
COUNTED_TWICE = "two actions at the same time both count a job"

REQUESTED_ONCE = Promise(
    "A second request to cancel a running job says that it is the second",
    COUNTED_TWICE,
    "TestCancel::test_the_same_call_twice_has_no_second_effect",
)

BULK_GUARDS = (
    Guard(
        "An action leaves jobs that have died since it began",
        TWICE,
        "    return record.ended_ms <= cutoff_ms\n",
        "    return True\n",
        BULK + "an_action_that_goes_on_with_its_cutoff_leaves_what_died_since",
    ),
    Guard(
        "A cancellation leaves jobs that were enqueued after it began",
        "it cancels jobs that were not chosen, and never ends while others are enqueued",
        "        return record.created_ms <= cutoff_ms and not record.is_cancel_requested\n",
        "        return not record.is_cancel_requested\n",
        BULK + "jobs_that_are_enqueued_meanwhile_are_not_cancelled",
    ),
    Guard(
        "A limit bounds what an action changes, not what it refuses",
        "an action with a limit leaves jobs that it should change",
        "                    left = left[len(batch) :]\n",
        "                    left = []\n",
        BULK + "a_limit_bounds_what_is_changed_not_what_is_refused",
    ),
    REQUESTED_ONCE.on("rules", "        if record.is_cancel_requested:\n", "        if False:\n"),
    REQUESTED_ONCE.on(
        "redis",
        "    if redis.call('HMGET', job.record, 'cancel')[1] == '1' then return 'requested_before' end\n",
        "",
    ),
    Guard(
        "Two actions enqueue a file again under the same id",
        "it is processed twice",
        "            entries.append(_entry(config, path, signature, size, where, next_id(last_id)))\n",
        '            entries.append(_entry(config, path, signature, size, where, ""))\n',
        FILES + "a_file_that_another_action_has_just_enqueued_is_counted_there",
    ),
    Guard(
        "A file whose new job has ended is not taken again by the same action",
        "it is processed twice",
        "            return not has_conditions and (record is None or record.created_ms <= cutoff_ms)\n",
        "            return not has_conditions\n",
        FILES + "a_file_is_taken_once_although_its_new_job_ends_meanwhile",
    ),
)
