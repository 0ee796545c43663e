#!lua flags=allow-oom
-- Register slots, each with a first heartbeat; again, to change what is said of them.
--
-- own KEYS   of each slot: heartbeat
-- own ARGV   of each slot: its id, what is said of it (JSON)
local total = (#ARGV - own_args) / 2
must_take(WORKERS, 'hash', 'HSET')
for i = 1, total do must_take(KEYS[own_keys + i], 'string', 'SET') end
for i = 1, total do
  redis.call('HSET', WORKERS, ARGV[own_args + 2 * i - 1], ARGV[own_args + 2 * i])
  redis.call('SET', KEYS[own_keys + i], '', 'PX', HEARTBEAT_TTL, 'NX')
end
return total
