#!lua flags=allow-oom
-- Promote due jobs: each leaves the scheduled set for the queue it belongs to, earliest first.
--
-- own ARGV   1 how many at most
-- returns    how many, the next one's due time ('' = none waits), now
must_take(SCHEDULED, 'zset', 'ZREM')
for i = 1, QUEUES do must_take(queue_key[i], 'list', 'LPUSH') end
must_keep_records()
must_count()
local due = read('ZRANGEBYSCORE', SCHEDULED, '-inf', NOW, 'LIMIT', 0, tonumber(ARGV[own_args + 1]))
write_counts()
local next_due = read('ZRANGE', SCHEDULED, #due, #due, 'WITHSCORES')
local ids, records = {}, {}
for i, raw in ipairs(due) do
  local id = id_in(raw)
  if id then records[i] = read('HMGET', RECORDS .. id, 'queue', 'created') end
  ids[i] = id or false
end
for i, raw in ipairs(due) do
  if ids[i] then
    local record, was = RECORDS .. ids[i], records[i]
    if not was[2] then redis.call('HSET', record, 'created', NOW) end
    push(record, raw, queue_number[was[1] or ''] or QUEUES, 'LPUSH')
  else
    disown(raw, QUEUES, 'LPUSH')
  end
  redis.call('ZREM', SCHEDULED, raw)
end
return { #due, next_due[2] or '', NOW }
