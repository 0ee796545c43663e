-- Release jobs: each leaves its slot's list for the front of its queue.
--
-- Part of a turn. own KEYS, own ARGV: settlements, see the prelude
-- returns   done, done already or fenced for each
for i = 1, QUEUES do must_take(queue_key[i], 'list', 'RPUSH') end
return settle(to_front)
