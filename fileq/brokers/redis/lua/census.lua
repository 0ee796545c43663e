#!lua flags=no-writes
-- Count every place and read every counter in one look. Costs one step a slot and one a queue, whatever they hold.
--
-- own KEYS   processing lists that have no slot in the registry
-- own ARGV   1 processing list pattern, 2 heartbeat pattern (each cut at its %s into two arguments, so 1 to 4)
-- returns    now; length of each queue; scheduled, running, dead, completed, cancelled, heartbeats; the paused
--            queues; the counters as name, value, …
local pending, running, heartbeats = {}, 0, 0
for i = 1, QUEUES do pending[i] = read('LLEN', queue_key[i]) end
local is_counted = {}
for _, slot in ipairs(read('HKEYS', WORKERS)) do
  local processing = ARGV[own_args + 1] .. slot .. ARGV[own_args + 2]
  is_counted[processing] = true
  running = running + read('LLEN', processing)
  heartbeats = heartbeats + read('EXISTS', ARGV[own_args + 3] .. slot .. ARGV[own_args + 4])
end
-- A slot that had no entry when the caller looked may have one by now.
for i = own_keys + 1, #KEYS do
  if not is_counted[KEYS[i]] then running = running + read('LLEN', KEYS[i]) end
end
return {
  NOW, pending, read('ZCARD', SCHEDULED), running, read('LLEN', DEAD), read('LLEN', COMPLETED),
  read('LLEN', CANCELLED), heartbeats, read('SMEMBERS', PAUSED), read('HGETALL', STATS),
}
