-- Retry jobs: each leaves its slot's list and waits out its delay in the scheduled set.
--
-- Part of a turn. own KEYS, own ARGV: settlements, see the prelude
-- returns   done, done already or fenced for each
must_take(SCHEDULED, 'zset', 'ZSCORE', 'ZADD')
return settle(to_scheduled)
