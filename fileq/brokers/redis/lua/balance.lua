#!lua flags=allow-oom
-- Balance the counters: correct one of them, only if the drift is exactly what the caller says. Jobs that can't be
-- found count as deleted, jobs that are too many as adopted. The counters of the hour stay as they are.
--
-- own KEYS   processing lists without a registry entry
-- own ARGV   1 and 2 pattern of processing lists, split at its %s; 3 the drift, 4 the drift it becomes
-- returns    1, or 0 if the drift is another
local before_slot, after_slot, expected_drift, next_drift = unpack(ARGV, own_args + 1)
require_access(STATS, 'hash', 'HMGET', 'HINCRBY')
local counters = redis.call('HMGET', STATS, 'produced', 'adopted', 'completed', 'cancelled', 'deleted')
for i = 1, 5 do counters[i] = tonumber(counters[i]) or 0 end
local drift = counters[1] + counters[2] - counters[3] - counters[4] - counters[5]
local is_counted = {}
for i = 1, QUEUES do drift = drift - read('LLEN', queue_key[i]) end
for _, slot in ipairs(read('HKEYS', WORKERS)) do
  local processing = before_slot .. slot .. after_slot
  is_counted[processing] = true
  drift = drift - read('LLEN', processing)
end
for i = own_keys + 1, #KEYS do
  if not is_counted[KEYS[i]] then drift = drift - read('LLEN', KEYS[i]) end
end
drift = drift - read('ZCARD', SCHEDULED) - read('LLEN', DEAD)
if drift ~= tonumber(expected_drift) then return 0 end
local surplus = drift - tonumber(next_drift)
redis.call('HINCRBY', STATS, surplus > 0 and 'deleted' or 'adopted', int_text(math.abs(surplus)))
return 1
