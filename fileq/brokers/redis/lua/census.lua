#!lua flags=no-writes
-- Count the jobs in every place and read every counter, as one consistent look. The cost grows with the number of slots
-- and queues, not with the number of jobs.
--
-- own KEYS   processing lists without a registry entry
-- own ARGV   1 and 2 pattern of processing lists, split at its %s; 3 and 4 pattern of heartbeats, split the same way
-- returns    now; the length of each queue; the numbers of scheduled, running, dead, completed and cancelled jobs and
--            of heartbeats; the paused queues; the counters as name, value, …; the number of unfinished batches
local processing_before, processing_after, heartbeat_before, heartbeat_after = unpack(ARGV, own_args + 1)
local pending, running, heartbeats = {}, 0, 0
for i = 1, QUEUES do pending[i] = read('LLEN', queue_key[i]) end
local is_counted = {}
for _, slot in ipairs(read('HKEYS', WORKERS)) do
  local processing = processing_before .. slot .. processing_after
  is_counted[processing] = true
  running = running + read('LLEN', processing)
  heartbeats = heartbeats + read('EXISTS', heartbeat_before .. slot .. heartbeat_after)
end
-- A slot may have registered since the caller made the list.
for i = own_keys + 1, #KEYS do
  if not is_counted[KEYS[i]] then running = running + read('LLEN', KEYS[i]) end
end
local batches = redis.pcall('ZCARD', string.sub(RECORDS, 1, -5) .. 'batches:unfinished') -- of another type: none
return {
  NOW, pending, read('ZCARD', SCHEDULED), running, read('LLEN', DEAD), read('LLEN', COMPLETED),
  read('LLEN', CANCELLED), heartbeats, read('SMEMBERS', PAUSED), read('HGETALL', STATS),
  type(batches) == 'number' and batches or 0,
}
