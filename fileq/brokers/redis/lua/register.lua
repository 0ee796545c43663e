#!lua flags=allow-oom
-- Register slots, each with a first heartbeat. Registering again changes the information, not the heartbeat.
--
-- own KEYS   the heartbeat of each slot
-- own ARGV   of each slot: its id, its information (JSON)
-- returns    how many slots
local total = (#ARGV - own_args) / 2
require_access(WORKERS, 'hash', 'HSET')
for i = 1, total do require_access(KEYS[own_keys + i], 'string', 'SET') end
for i = 1, total do
  redis.call('HSET', WORKERS, ARGV[own_args + 2 * i - 1], ARGV[own_args + 2 * i])
  redis.call('SET', KEYS[own_keys + i], '', 'PX', HEARTBEAT_TTL, 'NX')
end
return total
