"""The guards of the Redis broker: its scripts, and its connections."""

from tests.support.guards.guard import Guard, conformance

LUA = "fileq/brokers/redis/lua/"
SETTLEMENTS, CLAIM, REAP, RENEW = (
    LUA + name for name in ("prelude/settlements.lua", "claim.lua", "reap.lua", "renew.lua")
)


def on_redis(guarantee: str, file: str, text: str, mutant: str, *classes: str) -> Guard:
    return Guard(guarantee, file, text, mutant, conformance("redis", *classes))


REDIS_GUARDS = (
    on_redis(
        "A settlement counts only if its slot still holds the job",
        SETTLEMENTS,
        " or not read('LPOS', job.processing, job.raw) then",
        " then",
        "TestSettle",
    ),
    on_redis(
        "A late call about an earlier claim is fenced",
        SETTLEMENTS,
        " or is_older(job.token, last)",
        "",
        "late_call_about_an_earlier",
    ),
    on_redis(
        "A repeated settlement has no second effect",
        SETTLEMENTS,
        "if last == job.token then",
        "if false then",
        "TestSettle",
    ),
    on_redis(
        "One slot settles once in one call",
        SETTLEMENTS,
        "local last = settled_here[job.slot] or settled_last[i]",
        "local last = settled_last[i]",
        "same_settlement_twice",
    ),
    on_redis(
        "A settled job leaves its processing list",
        SETTLEMENTS,
        "    redis.call('LREM', job.processing, '1', job.raw)\n",
        "",
        "TestSettle",
    ),
    on_redis(
        "Each slot's last settlement is remembered",
        SETTLEMENTS,
        "  redis.call('HSET', SETTLED, unpack(settled_now))\n",
        "",
        "TestSettle",
    ),
    on_redis(
        "Settling renews the heartbeat",
        SETTLEMENTS,
        "      redis.call('SET', job.heartbeat, '', 'PX', HEARTBEAT_TTL)\n",
        "",
        "settling_is_a_heartbeat",
    ),
    on_redis(
        "A retried job's record does not expire, even after a copy completed",
        SETTLEMENTS,
        "  end_attempt(job, 'retrying', 'due', int_text(due))\n  redis.call('PERSIST', job.record)\n",
        "  end_attempt(job, 'retrying', 'due', int_text(due))\n",
        "TestRetry",
    ),
    on_redis(
        "A dead job's record does not expire",
        SETTLEMENTS,
        "  end_attempt(job, 'dead', 'ended', NOW)\n  redis.call('PERSIST', job.record)\n",
        "  end_attempt(job, 'dead', 'ended', NOW)\n",
        "TestBury",
    ),
    on_redis(
        "The record stays while a copy of the job waits",
        SETTLEMENTS,
        "  if has_copies then\n",
        "  if false then\n",
        "TestComplete",
    ),
    on_redis(
        "Two copies with the same bytes are both scheduled",
        SETTLEMENTS,
        "  while redis.call('ZSCORE', SCHEDULED, job.next_raw) do job.next_raw = job.next_raw .. ' ' end\n",
        "",
        "TestRetry",
    ),
    on_redis(
        "Fenced outcomes are counted",
        SETTLEMENTS,
        "if fenced > 0 then count('fenced', fenced) end",
        "",
        "TestSettle",
    ),
    on_redis(
        "A slot that is not registered gets no job",
        CLAIM,
        "  if registered[i] then held[i] = is_any_held",
        "  if true then held[i] = is_any_held",
        "TestClaim",
    ),
)
