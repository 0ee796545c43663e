#!lua flags=allow-oom
-- Replace the state of a schedule, unless it was changed since the caller read it. A server whose memory is full refuses
-- the definition of a new one before this, as a document.
--
-- own KEYS   1 schedules, 2 their states
-- own ARGV   1 name, 2 the state that the caller read ('' = none), 3 the new state ('' = remove it), 4 its next slot
--            ('' = it does not fire)
-- returns    1 if it was replaced, else 0
local schedules, states, name = KEYS[own_keys + 1], KEYS[own_keys + 2], ARGV[own_args + 1]
local was, becomes, next_slot = ARGV[own_args + 2], ARGV[own_args + 3], ARGV[own_args + 4]
require_access(schedules, 'zset', 'ZADD', 'ZREM')
require_access(states, 'hash', 'HGET', 'HSET', 'HDEL')
if (redis.call('HGET', states, name) or '') ~= was then return 0 end
if becomes == '' then
  redis.call('HDEL', states, name)
else
  redis.call('HSET', states, name, becomes)
end
if next_slot == '' then
  redis.call('ZREM', schedules, name)
else
  redis.call('ZADD', schedules, next_slot, name)
end
return 1
