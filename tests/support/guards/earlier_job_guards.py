"""The guards of the order of jobs of one file: a version waits while an earlier one is running."""

from tests.support.guards.guard import Guard, Promise

PUMP = "tests/unit/worker/test_pump_deferrals.py::test_"
BOTH = "two versions of a file run side by side, and the older one reads the newer bytes"

NAMED = Promise(
    "A record names the earlier jobs of its file",
    BOTH,
    "TestEarlierJob::test_a_record_names_the_earlier_jobs_of_its_file_newest_first",
)
BLOCKED = Promise(
    "A claim says whether an earlier job of its file is running",
    BOTH,
    "TestEarlierJob::test_a_claim_is_blocked_while_an_earlier_job_runs",
)
BLOCKED_AGAIN = Promise(
    "A job that its slot holds already is blocked too",
    "after a lost reply two versions of a file run side by side",
    "TestEarlierJob::test_a_job_that_its_slot_holds_already_is_blocked_too",
)
ONLY_RUNNING = Promise(
    "Only a running job blocks a later one",
    "a file whose first version is dead is never processed again",
    "TestEarlierJob::test_an_earlier_job_that_does_not_run_blocks_nothing",
)
ALSO_BEFORE = Promise(
    "A record names the unfinished jobs that the job of the same version names",
    "a third `fileq enqueue` of a file runs beside the first",
    "TestEarlierJob::test_a_job_of_a_known_version_also_names_the_unfinished_jobs_before_that_one",
)
NOT_ITSELF = Promise(
    "A job never waits for itself",
    "a job whose id is used again waits forever",
    "TestEarlierJob::test_a_job_never_names_itself",
)

EARLIER_JOB_GUARDS = (
    NAMED.on("redis", "  if after then redis.call('HSET', record, 'after', after) end\n", ""),
    NAMED.on(
        "rules",
        "            record.jobs_before = earlier.jobs_before(job.id, unfinished_before(work, same))\n",
        "            pass\n",
    ),
    BLOCKED.on("redis", "NOW, was and was[3],", "NOW, nil,"),
    BLOCKED.on("rules", "work.now_ms, is_blocked=is_blocked(work, record))", "work.now_ms)"),
    BLOCKED_AGAIN.on("redis", "was[2] or '0', was[3],", "was[2] or '0', nil,"),
    BLOCKED_AGAIN.on("redis", "was[2] or '0', is_blocked(was[3]),", "was[2] or '0', 0,"),
    BLOCKED_AGAIN.on("rules", '"is_blocked": is_blocked(work, record)', '"is_blocked": False'),
    ONLY_RUNNING.on("redis", "    if state == 'running' or is_awaited", "    if state or is_awaited"),
    ONLY_RUNNING.on("rules", "any(other.state == State.RUNNING for other in", "any(True for other in"),
    NOT_ITSELF.on("redis", "= 16, {}, { [in_one_line(id)] = true }\n", "= 16, {}, {}\n"),
    NOT_ITSELF.on("sqlite", "tuple(other for other in ids if other != id)[", "tuple(ids)["),
    ALSO_BEFORE.on("redis", "same and field_of(same, 'after') or ''", "''"),
    ALSO_BEFORE.on("rules", "unfinished_before(work, same))\n", "())\n"),
    Guard(
        "A job waits while an earlier job of its file is running",
        BOTH,
        "        if claim.is_blocked:\n",
        "        if False:\n",
        PUMP + "a_job_waits_while_an_earlier_job_of_its_file_runs",
    ),
    Guard(
        "A job that waits for an earlier one does not become the probe of a breaker",
        "the breaker waits for a probe that does not run",
        "        if claim.is_blocked:\n",
        "        if claim.is_blocked and self._breakers.admits(task.route, claim.key):\n",
        PUMP + "a_job_that_waits_for_an_earlier_one_is_no_probe_of_a_breaker",
    ),
    Guard(
        "Each job that waits for an earlier one is reported once",
        "the log has a line for each second that a job waits",
        "                return not was_waiting\n",
        "                return True\n",
        PUMP + "each_job_that_waits_for_an_earlier_one_is_logged_once",
    ),
)
