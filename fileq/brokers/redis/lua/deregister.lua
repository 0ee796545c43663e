#!lua flags=allow-oom
-- Deregister slots: what their lists still hold goes back to the front of its queue in the same step. A claim that is
-- executed later, for a caller long gone, finds its slot unknown and takes nothing.
--
-- own KEYS   of each slot: processing list, heartbeat
-- own ARGV   the slots
-- returns    how many jobs went back
local total = #ARGV - own_args
local jobs, seen = {}, {}
must_take(WORKERS, 'hash', 'HDEL')
must_take(SETTLED, 'hash', 'HDEL')
must_keep_records()
must_count()
for i = 1, QUEUES do must_take(queue_key[i], 'list', 'RPUSH') end
for i = 1, total do
  local processing, heartbeat = KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i]
  must_take(processing, 'list', 'DEL')
  must_take(heartbeat, 'string', 'DEL')
  for _, raw in ipairs(seen[processing] and {} or read('LRANGE', processing, 0, -1)) do
    local id = id_in(raw)
    local queue = id and read('HMGET', RECORDS .. id, 'queue')[1]
    jobs[#jobs + 1] = { raw = raw, record = id and RECORDS .. id, queue = queue_number[queue or ''] or QUEUES }
  end
  seen[processing] = true -- a slot may be named twice, its jobs go back once
end

for _, job in ipairs(jobs) do
  if job.record then
    push(job.record, job.raw, job.queue, 'RPUSH')
  else
    disown(job.raw, job.queue, 'RPUSH')
  end
  count('released')
end
for i = 1, total do
  local slot = ARGV[own_args + i]
  redis.call('DEL', KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i])
  redis.call('HDEL', WORKERS, slot)
  redis.call('HDEL', SETTLED, slot)
end
write_counts()
return #jobs
