"""The guards of the Redis broker's scripts: settling, claiming, renewing, reaping, enqueueing, waiting jobs."""

from tests.support.guards import promises
from tests.support.guards.guard import Guard, Promise

EXPIRY = "tests/integration/redis/test_expiry.py::"
PERMISSIONS = "tests/integration/redis/test_permissions.py::test_"
LONG = "tests/integration/worker/test_too_long_jobs.py::test_"


def guard(promise: Promise, text: str, mutant: str) -> Guard:
    return promise.on("redis", text, mutant)


SETTLING = (
    guard(promises.HELD, " or not read('LPOS', job.processing, job.raw) then", " then"),
    guard(promises.LATE, " or is_older(job.token, last)", ""),
    guard(promises.REPEATED, "if last == job.token then", "if false then"),
    guard(promises.REMEMBERED, "  redis.call('HSET', SETTLED, unpack(settled_now))\n", ""),
    guard(
        promises.TWICE_IN_ONE_CALL,
        "local last = settled_here[job.slot] or settled_last[i]",
        "local last = settled_last[i]",
    ),
    guard(
        promises.TWO_CLAIMS_IN_ONE_CALL,
        "elseif settled_here[job.slot] or is_older",
        "elseif is_older",
    ),
    guard(promises.LEAVES_SLOT, "      redis.call('LREM', job.processing, '1', job.raw)\n", ""),
    guard(
        promises.SETTLING_RENEWS,
        "      redis.call('SET', job.heartbeat, '', 'PX', HEARTBEAT_TTL)\n",
        "",
    ),
    guard(promises.FENCED_COUNTED, "if fenced > 0 then count('fenced', fenced) end", ""),
    guard(
        promises.RETRYING_STAYS,
        "  redis.call('PERSIST', job.record)\n  redis.call('ZADD'",
        "  redis.call('ZADD'",
    ),
    guard(
        promises.DEAD_STAYS,
        "  redis.call('PERSIST', job.record)\n  redis.call('LPUSH', DEAD, job.next_raw)",
        "  redis.call('LPUSH', DEAD, job.next_raw)",
    ),
    guard(promises.COPY_KEEPS_RECORD, "  if has_copies then\n", "  if false then\n"),
    guard(
        promises.COPIES_SCHEDULED,
        "  while redis.call('ZSCORE', SCHEDULED, job.next_raw) do job.next_raw = job.next_raw .. ' ' end\n",
        "",
    ),
    guard(
        promises.DEFERRAL_IS_NO_ATTEMPT,
        "  end_claim(job)\n  redis.call('HSET'",
        "  end_attempt(job, 'deferred')\n  redis.call('HSET'",
    ),
    guard(promises.DEFERRALS_COUNTED, "redis.call('HINCRBY', job.record, 'deferred_count', 1)", "1"),
    guard(promises.DEFERRAL_ENDS, "  if was[7] then redis.call('HDEL', job.record, 'deferred') end\n", ""),
)

CLAIMING = (
    Guard(
        "A settled job leaves its slot although the claim of the same call is refused",
        "the job is in two places and runs again",
        "for slot in pairs(freed) do empty_list(slot) end",
        "",
        PERMISSIONS + "a_settled_job_leaves_its_slot_although_the_claim_of_the_same_call_is_refused",
    ),
    Guard(
        "A slot with another job in its list gets that one after a settlement",
        "it holds two jobs, and loses the one that it runs at the next renewal",
        "      if redis.call('LLEN', job.processing) > 1 then empty_list(job.slot) end\n",
        "",
        PERMISSIONS + "a_slot_whose_list_has_another_job_gets_that_one_after_a_settlement",
    ),
    Guard(
        "Settlements of one claim by two verbs take effect once",
        "a job is completed and retried",
        "    empty_list(job.slot) -- it may have",
        "    -- it may have",
        PERMISSIONS + "settlements_of_one_job_by_two_verbs_in_one_call_take_effect_once",
    ),
    Guard(
        "Jobs that were taken are removed before the front of their queue is read again",
        "two slots run one job",
        "    trim_queue(i)\n    raws =",
        "    raws =",
        LONG + "jobs_around_it_are_claimed_once",
    ),
    Guard(
        "Claimed jobs leave their queue",
        "they run again and again",
        "for i = 1, QUEUES do trim_queue(i) end\n",
        "",
        PERMISSIONS + "jobs_claimed_before_one_that_cannot_be_claimed_reach_their_slots",
    ),
    guard(promises.UNREGISTERED, "  if registered[i] then held[i] =", "  if true then held[i] ="),
    guard(promises.GIVEN_AGAIN, "  local raw = held[i] or taken[slot]\n", "  local raw = taken[slot]\n"),
    guard(promises.SLOT_NAMED_TWICE, "  local raw = held[i] or taken[slot]\n", "  local raw = held[i]\n"),
    guard(promises.CLAIM_RENEWS, "  redis.call('SET', heartbeats[i], raw, 'PX', HEARTBEAT_TTL)\n", ""),
    guard(promises.VAIN_CLAIM_RENEWS, "    if freed[slot] ~= nil then redis", "    if false then redis"),
    guard(promises.VAIN_CLAIM_ALONE, "    if freed[slot] ~= nil then redis", "    if true then redis"),
    guard(promises.PAUSED, "  if is_paused[i] or length[i] == 0 then", "  if length[i] == 0 then"),
    guard(
        promises.NOT_STARVED,
        "  if every == 0 or (claims_made + 1) % every ~= 0 then return 1 end\n  return 2",
        "  if true then return 1 end\n  return 2",
    ),
    guard(promises.ADOPTED_ONCE, "  if queued > 0 then\n", "  if true then\n"),
    guard(
        promises.OWN_TOKEN,
        "        tokens[slot] += 1\n",
        "        tokens[slot] = 1\n",
    ),
    Guard(
        "Jobs claimed before one that cannot be claimed reach their slots",
        "the slots hold jobs that their worker does not know of",
        "if failure and #claims == 0 then",
        "if failure then",
        PERMISSIONS + "jobs_claimed_before_one_that_cannot_be_claimed_reach_their_slots",
    ),
)

LEASES = (
    guard(promises.UNKNOWN_IS_GONE, "if not registered[i] then return { 'gone' } end", ""),
    guard(promises.RENEWED, "redis.call('SET', heartbeat, raw, 'PX', HEARTBEAT_TTL)", ""),
    guard(promises.LOST, "if really ~= believed and believed ~= '' then", "if false then"),
    guard(promises.UNEXPECTED, "if really ~= believed then", "if false then"),
    guard(promises.CANCELLED, "is_wanted = was[1] == '1' or", "is_wanted ="),
    guard(
        promises.ALIVE,
        "local is_alive = read('EXISTS', heartbeat) == 1 and not is_gone\n",
        "local is_alive = false\n",
    ),
    guard(
        promises.ONLY_SILENT_SUSPECTS,
        "slots = [slot for slot in leases if left_ms[slot] == -2]",
        "slots = list(leases)",
    ),
    Guard(
        "A heartbeat that lasts longer than its lease is shortened",
        "after the server's clock stepped back no dead worker is found",
        "stale = [slot for slot, lease in leases.items() if 0 < lease.lease_ms < left_ms[slot]]",
        "stale = list[str]()",
        EXPIRY + "test_a_heartbeat_that_lasts_longer_than_its_lease_is_shortened_to_it",
    ),
    guard(promises.ONE_REAPER, " or not redis.call('LPOS', processing, job.raw) then", " then"),
    guard(promises.REAPED_ONCE, " or seen[job.raw] or", " or"),
    guard(
        promises.REAPED_LEAVES,
        "for _, job in ipairs(held_jobs) do redis.call('LREM', processing, 1, job.raw) end\n",
        "",
    ),
    guard(
        promises.STILL_HOLDS,
        "if not is_alive and redis.call('EXISTS', processing) == 0 then",
        "if not is_alive then",
    ),
    guard(promises.REGISTERED_AGAIN, "'PX', HEARTBEAT_TTL, 'NX')", "'PX', HEARTBEAT_TTL)"),
    guard(promises.GIVEN_BACK, "    push(job.record, job.raw, job.queue, 'RPUSH')\n", ""),
    guard(promises.GIVEN_BACK_ONCE, "ipairs(seen[processing] and {} or read(", "ipairs(read("),
)

ENQUEUEING = (
    guard(promises.ID_ONCE, "  if is_recorded[record] or holder then\n", "  if holder then\n"),
    guard(
        promises.VERSION_ONCE,
        "is_version and is_known(versions, ARGV[a + ENTRY.signature])",
        "false",
    ),
    guard(
        promises.VERSION_LEARNED,
        "  if path ~= '' then remember_version(",
        "  if false then remember_version(",
    ),
    guard(promises.LIMIT, "used + taken >= limit", "used + taken > limit"),
    Guard(
        "The window of the rate limit ends",
        "producers wait forever",
        "redis.call('SET', RATE_LIMIT, taken, 'PX', WINDOW)",
        "redis.call('SET', RATE_LIMIT, taken)",
        EXPIRY + "test_the_rate_counter_counts_and_expires_with_its_window",
    ),
    Guard(
        "A counter without an expiry does not throttle forever",
        "a program killed between two commands stops all producers",
        "    redis.call('PEXPIRE', RATE_LIMIT, WINDOW)\n",
        "",
        EXPIRY + "test_a_rate_counter_without_an_expiry_gets_one",
    ),
    Guard(
        "A window of the rate limit that is too long has ended",
        "after the server's clock stepped back producers wait for it",
        "if used > 0 and redis.call('PTTL', RATE_LIMIT) > WINDOW then used = 0 end\n",
        "",
        EXPIRY + "test_a_window_of_the_rate_limit_that_is_too_long_has_ended",
    ),
    Guard(
        "A job that is refused is not counted",
        "the counters say that a job was lost",
        "  undo(stats, counted)\n",
        "",
        "tests/integration/redis/test_permissions.py::test_a_key_of_the_wrong_type_is_refused_and_nothing_changes",
    ),
    guard(promises.LEDGER_UNCHANGED, "redis.call('HGET', LEDGER, path) ~= was", "false"),
)

WAITING = (
    guard(promises.PROMOTED_LEAVES, "  redis.call('ZREM', SCHEDULED, raw)\n", ""),
    guard(promises.NOT_BEFORE_TIME, "SCHEDULED, '-inf', NOW, 'LIMIT'", "SCHEDULED, '-inf', '+inf', 'LIMIT'"),
    guard(promises.REALIGNED, "if since > latest and", "if false and"),
    guard(
        promises.PROMOTED_COUNTED,
        "queue_name[number], 'due', '0')\n  redis.call('HINCRBY', record, 'queued', 1)\n",
        "queue_name[number], 'due', '0')\n",
    ),
    guard(
        promises.PUSHED_STAYS,
        "  redis.call('PERSIST', record)\n  redis.call(command, queue_key",
        "  redis.call(command, queue_key",
    ),
    guard(promises.DUE_LEAVES, "    redis.call('ZREM', SCHEDULED, was[2])\n", ""),
    guard(promises.DUE_ONLY_THERE, "is_waiting and redis.call('ZSCORE', SCHEDULED, was[2]) and", "is_waiting and"),
    guard(
        promises.DUE_ONLY_WAITING,
        "was[2] and DELAYED[was[1]]",
        "was[2]",
    ),
    guard(
        promises.RELOCATED,
        "(state == 'completed' or state == 'dead') and 1 or 0",
        "state and 1 or 0",
    ),
)

TOO_LONG = (
    Guard(
        "Bytes that are too long to be decoded reach no worker",
        "one job of another program fills the memory of each worker in turn",
        "  local is_long, id, is_first, was = #raw > MAX_DECODED_BYTES,",
        "  local is_long, id, is_first, was = false,",
        LONG + "the_claim_buries_it_and_gives_the_slot_the_next_job",
    ),
    Guard(
        "One call buries one element that is too long",
        "a call that meets many of them blocks the server",
        "  if #buried > 0 then return nil end\n",
        "",
        LONG + "one_call_buries_one_and_the_next_calls_the_others",
    ),
    Guard(
        "No script parses more than 1 MiB of a job",
        "one job of another program blocks the server for seconds",
        "  if #raw > MAX_PARSED_BYTES then return {} end\n",
        "",
        LONG + "no_script_parses_more_of_it_than_the_bound",
    ),
    Guard(
        "The record of bytes that are too long does not hold them",
        "they take twice their memory and their time",
        "  job.was[5], job.was[6] = slot, 'running' -- so end_attempt() does not write the bytes\n",
        "",
        LONG + "the_claim_buries_it_and_gives_the_slot_the_next_job",
    ),
    Guard(
        "A page of a list has a bounded number of bytes",
        "a command reads the whole dead-letter list in one reply",
        "max(1, fitting)",
        "size",
        LONG + "long_dead_jobs_are_read_and_removed_a_few_at_a_time",
    ),
    Guard(
        "No script reads a list to find long bytes",
        "a command on long dead jobs blocks the server for seconds",
        "local LONG = 65536 ",
        "local LONG = 1e9 ",
        LONG + "long_dead_jobs_are_read_and_removed_a_few_at_a_time",
    ),
)

REDIS_GUARDS = (*SETTLING, *CLAIMING, *LEASES, *ENQUEUEING, *WAITING, *TOO_LONG)
