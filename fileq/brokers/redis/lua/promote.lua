#!lua flags=allow-oom
-- Promote due jobs: move each from the scheduled set to its queue, earliest first.
--
-- own KEYS   1 schedules, 2 cancels, 3 deadlines
-- own ARGV   1 how many at most
-- returns    how many; the due time of the next job ('' = none waits); now; the next slot of a schedule ('' = none);
--            how many cancellations of running jobs were requested; when to look at the first deadline ('' = none)
require_access(SCHEDULED, 'zset', 'ZREM')
require_queues('LPUSH')
require_record_permissions()
local schedules, cancels_key, deadlines = unpack(KEYS, own_keys + 1)
local limit = tonumber(ARGV[own_args + 1])
local due = read('ZRANGEBYSCORE', SCHEDULED, '-inf', NOW, 'LIMIT', 0, limit)
local next_due = read('ZRANGE', SCHEDULED, #due, #due, 'WITHSCORES')
local next_fire = read('ZRANGE', schedules, 0, 0, 'WITHSCORES')
local cancels = tonumber(read('GET', cancels_key)) or 0
local next_look = read('ZRANGE', deadlines, 0, 0, 'WITHSCORES')
local ids, records, is_foreign_due, has_foreign = {}, {}, {}, false
for i, raw in ipairs(due) do
  local id = read_id(raw)
  if id then records[i] = read('HMGET', RECORDS .. id, 'queue', 'created', 'batch', 'origin') end
  ids[i] = id
  is_foreign_due[i] = id and is_foreign(RECORDS .. id, raw, records[i][3], records[i][4])
  if is_foreign_due[i] then has_foreign = true end
end
if has_foreign then require_counters() end
for i, raw in ipairs(due) do
  if is_foreign_due[i] then
    push_without_record(raw, QUEUES, 'LPUSH') -- another job has its id; the claim buries it
  elseif ids[i] then
    local record, was = RECORDS .. ids[i], records[i]
    if not was[2] then redis.call('HSET', record, 'created', NOW) end
    push(record, raw, queue_number[was[1] or ''] or QUEUES, 'LPUSH')
  else
    redis.call('LPUSH', queue_key[QUEUES], raw) -- another program put it here; the claim counts it as adopted
  end
  redis.call('ZREM', SCHEDULED, raw)
end
if has_foreign then write_counters() end
return { #due, next_due[2] or '', NOW, next_fire[2] or '', cancels, next_look[2] or '' }
