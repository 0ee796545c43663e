#!lua flags=allow-oom
-- Release jobs: each leaves its slot's list for the front of its queue.
--
-- own KEYS, own ARGV   settlements, see the prelude
-- returns              done, done already or fenced for each
for i = 1, QUEUES do must_take(queue_key[i], 'list', 'RPUSH') end
local answers = settle(to_front)
publish()
return answers
