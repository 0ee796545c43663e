-- Release jobs: move each from its slot's processing list to the front of its queue.
--
-- Part of settle_and_claim. own KEYS, own ARGV: settlements, see prelude/settlements.lua
-- returns    done, done already or fenced for each
require_queues('RPUSH')
return settle(move_to_front)
