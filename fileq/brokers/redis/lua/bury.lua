-- Bury jobs: each leaves its slot's list for the dead-letter list, byte for byte as given.
--
-- Part of a turn. own KEYS, own ARGV: settlements, see the prelude
-- returns   done, done already or fenced for each
must_take(DEAD, 'list', 'LPUSH')
return settle(to_dead)
