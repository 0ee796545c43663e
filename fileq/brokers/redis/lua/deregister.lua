#!lua flags=allow-oom
-- Deregister slots: their jobs go back to the fronts of their queues in the same step. A claim for such a slot that the
-- server executes later gives nothing, because the slot is not registered.
--
-- own KEYS   of each slot: processing list, heartbeat
-- own ARGV   the slots
-- returns    how many jobs went back
local total = #ARGV - own_args
local jobs, seen = {}, {}
require_access(WORKERS, 'hash', 'HDEL')
require_access(SETTLED, 'hash', 'HDEL')
require_record_permissions()
require_counters()
require_queues('RPUSH')
for i = 1, total do
  local processing, heartbeat = KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i]
  require_access(processing, 'list', 'DEL')
  require_access(heartbeat, 'string', 'DEL')
  for _, raw in ipairs(seen[processing] and {} or read('LRANGE', processing, 0, -1)) do
    local id = read_id(raw)
    local record = id and RECORDS .. id
    local was = id and read('HMGET', record, 'queue', 'batch', 'origin', 'json', 'before') or {}
    local job = { raw = raw, record = record, queue = queue_number[was[1] or ''] or QUEUES }
    if id and is_foreign(record, raw, was[2], was[3]) then job.record = nil end -- the next claim buries it
    -- Bytes that differ from those of the record, or did before their claim, go back as they came if they are no job.
    if was[4] and (was[5] or was[4] ~= raw) and not looks_like_job(raw) then
      job.record, job.undone = nil, was[4] == raw and record or nil
    end
    jobs[#jobs + 1] = job
  end
  seen[processing] = true -- the caller may name a slot twice; its jobs go back once
end

for _, job in ipairs(jobs) do
  if job.undone then undo_claim(job.undone, job.raw) end
  if job.record then
    push(job.record, job.raw, job.queue, 'RPUSH')
  else
    push_without_record(job.raw, job.queue, 'RPUSH')
  end
  count('released')
end
for i = 1, total do
  local slot, processing, heartbeat = ARGV[own_args + i], KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i]
  redis.call('DEL', processing, heartbeat)
  redis.call('HDEL', WORKERS, slot)
  redis.call('HDEL', SETTLED, slot)
end
write_counters()
return #jobs
