"""The guards of the Redis broker's admin scripts, of its searches in long lists, and of its connections."""

from tests.support.guards import promises
from tests.support.guards.guard import SUITE, Guard, Promise

PERMISSIONS = "tests/integration/redis/test_permissions.py::"
LONG_LISTS = "tests/integration/redis/test_long_lists.py::"


def guard(promise: Promise, text: str, mutant: str) -> Guard:
    return promise.on("redis", text, mutant)


REDIS_REPAIR_GUARDS = (
    guard(
        promises.REVIVED_ONCE,
        "unpack(ARGV, a + 1, a + STRIDE)\n  local offset = find(DEAD, raw)\n",
        "unpack(ARGV, a + 1, a + STRIDE)\n  local offset = find(DEAD, raw) or 0\n",
    ),
    guard(
        promises.DISCARDED_ONCE,
        "ARGV[own_args + i]\n  local offset = find(DEAD, raw)\n",
        "ARGV[own_args + i]\n  local offset = find(DEAD, raw) or 0\n",
    ),
    guard(promises.IN_ITS_PLACE, "lost[job.record] or is_there(job)", "lost[job.record]"),
    guard(promises.RESTORED_ONCE, " or lost[job.record] or is_there(job)", " or is_there(job)"),
    guard(promises.BALANCED, "if drift ~= tonumber(expected_drift) then return 0 end\n", ""),
    Guard(
        "A proof of absence is void once the record has changed",
        "a job that another repair restored is restored again",
        "  if table.concat(values, '\\0') ~= proof then return false end\n",
        "",
        LONG_LISTS + "test_a_proof_of_absence_is_void_when_another_repair_was_faster",
    ),
    Guard(
        "A repair voids the proofs of other repairs",
        "a job that another repair restored is restored again",
        "  redis.call('HINCRBY', job.record, 'restored', 1)\n",
        "",
        LONG_LISTS + "test_a_proof_of_absence_is_void_when_another_repair_was_faster",
    ),
    Guard(
        "No script searches a long list to its end",
        "an admin command blocks Redis",
        "if length <= SHORT then",
        "if true then",
        LONG_LISTS + "test_jobs_in_the_middle_of_a_long_queue_are_cancelled",
    ),
    Guard(
        "A copy that a call has taken is not taken again",
        "a call removes one job and answers for two",
        "window.offset_of[raw] = offset, window.next_copy[offset]",
        "window.offset_of[raw] = offset, offset",
        SUITE + "TestDeadLetter::test_a_job_twice_in_one_call_is_revived_once",
        "redis",
    ),
    Guard(
        "A key of the wrong type is refused before anything changes",
        "a script stops halfway, and a job is in two places or in none",
        "  if found ~= kind and found ~= 'none' then\n",
        "  if false then\n",
        PERMISSIONS + "test_a_key_of_the_wrong_type_is_refused_and_nothing_changes",
    ),
    Guard(
        "A missing permission is refused before anything changes",
        "a script stops halfway, and a job is in two places or in none",
        "    if not redis.acl_check_cmd(command, key) then",
        "    if false then",
        PERMISSIONS + "test_each_missing_permission_is_found_before_anything_changes",
    ),
    Guard(
        "A walk that may have skipped elements proves nothing",
        "a job that is in its queue is restored into it again",
        "            if known is not None or start == 0:\n",
        "            if True:\n",
        "tests/unit/brokers/test_redis_list_walk.py::test_an_element_that_stays_is_never_overlooked",
    ),
    Guard(
        "A job is absent only after a pass over the whole list",
        "a job that waits far from the ends of its queue is restored into it again",
        "        while wanted and (page := walk.read()):\n",
        "        for page in [walk.read()]:\n",
        LONG_LISTS + "test_jobs_lost_from_a_long_queue_are_restored",
    ),
    Guard(
        "A job outside the window is not absent",
        "a job that waits is answered as ended, and runs although it was cancelled",
        "  return not (is_long or window.is_whole) and FAR or nil\n",
        "  return nil\n",
        LONG_LISTS + "test_jobs_in_the_middle_of_a_long_queue_are_cancelled",
    ),
    Guard(
        "The script searches the window in the same step in which it changes something",
        "a job that has moved since the list was read is removed in the place of another",
        "  local offset = window.offset_of[raw]\n",
        "  local offset = window.offset_of[raw] or select(2, next(window.offset_of))\n",
        LONG_LISTS + "test_jobs_in_the_middle_of_a_long_queue_are_cancelled",
    ),
    Guard(
        "A job that another program has just pushed is not absent",
        "a job that is in its queue is restored into it again",
        "  return not (read('LPOS', list, raw, 'MAXLEN', NEAR)",
        "  return true or (read('LPOS', list, raw, 'MAXLEN', NEAR)",
        LONG_LISTS + "test_a_proof_of_absence_is_void_when_another_program_has_just_pushed_the_job",
    ),
    Guard(
        "One equal element does not show where a page continues",
        "copies with the same bytes hide a job from a walk",
        "_IN_A_ROW = 3",
        "_IN_A_ROW = 1",
        "tests/unit/brokers/test_redis_list_walk.py::test_a_copy_of_the_newest_element_which_is_gone_hides_no_element",
    ),
    Guard(
        "Elements that a walk removes do not hide others from it",
        "a command overlooks jobs",
        "if i not in removed] if removed else self._page\n",
        "]\n",
        "tests/unit/brokers/test_redis_list_walk.py::test_what_the_caller_removes_does_not_move_the_others_out_of_sight",
    ),
    Guard(
        "A dropped call disconnects",
        "the next caller reads the reply of another call",
        "            self._link.discard(self._carrier)\n        self._fail()",
        "            self._link.give_back(self._carrier)\n        self._fail()",
        "tests/integration/redis/test_dropped_calls.py::test_after_a_dropped_call_the_next_one_reads_its_own_reply",
    ),
)
