#!lua flags=allow-oom
-- Retry jobs: each leaves its slot's list and waits out its delay in the scheduled set.
--
-- own KEYS, own ARGV   settlements, see the prelude
-- returns              done, done already or fenced for each
must_take(SCHEDULED, 'zset', 'ZSCORE', 'ZADD')
local answers = settle(to_scheduled)
publish()
return answers
