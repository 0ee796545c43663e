-- Defer jobs: move each from its slot's processing list to the scheduled set, due after its delay. No attempt is counted.
--
-- Part of settle_and_claim. own KEYS, own ARGV: settlements, see prelude/settlements.lua
-- returns    done, done already or fenced for each
require_access(SCHEDULED, 'zset', 'ZSCORE', 'ZADD')
return settle(defer_to_scheduled)
