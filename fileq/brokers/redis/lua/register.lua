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
  local slot, info, heartbeat = ARGV[own_args + 2 * i - 1], ARGV[own_args + 2 * i], KEYS[own_keys + i]
  redis.call('HSET', WORKERS, slot, info)
  redis.call('SET', heartbeat, '', 'PX', HEARTBEAT_TTL, 'NX')
end
return total
