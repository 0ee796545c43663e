#!lua flags=allow-oom
-- Change a counter so that the books balance, only if they are out of balance by exactly what the caller says: what
-- can't be found counts as deleted, what is too much as adopted. The hour's counters stay: nothing happened in it.
--
-- own KEYS   processing lists that have no slot in the registry
-- own ARGV   1 and 2 processing list pattern, cut at its %s; 3 the drift, 4 what it becomes
-- returns    1, or 0 (the drift is another)
must_take(STATS, 'hash', 'HMGET', 'HINCRBY')
local counters = redis.call('HMGET', STATS, 'produced', 'adopted', 'completed', 'cancelled', 'deleted')
for i = 1, 5 do counters[i] = tonumber(counters[i]) or 0 end
local drift = counters[1] + counters[2] - counters[3] - counters[4] - counters[5]
local is_counted = {}
for i = 1, QUEUES do drift = drift - read('LLEN', queue_key[i]) end
for _, slot in ipairs(read('HKEYS', WORKERS)) do
  local processing = ARGV[own_args + 1] .. slot .. ARGV[own_args + 2]
  is_counted[processing] = true
  drift = drift - read('LLEN', processing)
end
for i = own_keys + 1, #KEYS do
  if not is_counted[KEYS[i]] then drift = drift - read('LLEN', KEYS[i]) end
end
drift = drift - read('ZCARD', SCHEDULED) - read('LLEN', DEAD)
if drift ~= tonumber(ARGV[own_args + 3]) then return 0 end
local surplus = drift - tonumber(ARGV[own_args + 4])
redis.call('HINCRBY', STATS, surplus > 0 and 'deleted' or 'adopted', text(math.abs(surplus)))
return 1
