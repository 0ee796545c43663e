-- Bury jobs: move each from its slot's processing list to the dead-letter list.
--
-- Part of settle_and_claim. own KEYS, own ARGV: settlements, see prelude/settlements.lua
-- returns    done, done already or fenced for each
require_access(DEAD, 'list', 'LPUSH')
return settle(move_to_dead)
