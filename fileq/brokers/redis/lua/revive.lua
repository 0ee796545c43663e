#!lua
-- Revive dead jobs: move each from the dead-letter list to its queue. A batch that has counted it is unfinished again,
-- and no longer cancelled.
--
-- own KEYS   of each job: its record, orders, the unique keys
-- own ARGV   the windows (prelude/search.lua); of each job: id, raw, next_raw, queue number if the record has none,
--            'u' = the bytes are no job, so the next claim adopts them again, 'f' = they are a job of another id, its
--            unique key ('' = none), LPUSH or RPUSH (RPUSH makes it the next job of its queue)
-- returns    for each: 1, or 0 if it is no longer in the list, or far, or `held` and the id of the unfinished job that has
--            its unique key, or foreign if another job has its id; next_offsets()
local STRIDE, JOB_KEYS = 7, 3
require_access(DEAD, 'list', 'LINDEX', 'LSET', 'LREM')
require_counters()
require_queues('LPUSH', 'RPUSH')
open_windows()
local total = (#ARGV - own_args) / STRIDE
local answers, batch_ids, deadlines = {}, {}, {}
for i = 1, total do
  local record = KEYS[own_keys + JOB_KEYS * (i - 1) + 1]
  local was = read('HMGET', record, 'batch', 'deadline')
  batch_ids[i], deadlines[i] = was[1], was[2]
  if deadlines[i] then require_access(DEADLINES, 'zset', 'ZADD') end
end
require_counting(batch_ids)
if total > 0 then
  local _, orders, unique = unpack(KEYS, own_keys + 1, own_keys + JOB_KEYS)
  require_access(orders, 'hash', 'HDEL')
  require_access(unique, 'hash', 'HGET', 'HSET')
end
require_record_permissions()

for i = 1, total do
  local a, k = own_args + (i - 1) * STRIDE, own_keys + JOB_KEYS * (i - 1)
  local record, orders, unique = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local id, raw, next_raw, default_number, kind, key, side = unpack(ARGV, a + 1, a + STRIDE)
  local offset = find(DEAD, raw)
  answers[i] = offset == FAR and FAR or offset and 1 or 0
  local holder = answers[i] == 1 and key ~= '' and key_holder(unique, key)
  if holder and holder ~= id then answers[i] = 'held ' .. holder end
  if answers[i] == 1 and (kind == 'f' or is_foreign_dead(record, raw)) then answers[i] = 'foreign' end
  if answers[i] == 1 then
    local was = redis.call('HMGET', record, 'queue', 'created')
    local number = queue_number[was[1] or ''] or tonumber(default_number)
    if kind == 'u' then
      redis.call('DEL', record)
      push_without_record(next_raw, number, side)
    else
      if not was[2] then redis.call('DEL', foreign_record(raw)) end -- the job that had its id is forgotten
      redis.call('HSET', record, 'error', '', 'ended', '0', 'cancel', '0', 'created', was[2] or NOW, 'fingerprint', '')
      if key ~= '' then
        redis.call('HSET', record, 'unique_key', key)
        redis.call('HSET', unique, key, id)
      end
      if deadlines[i] then index_deadline(id, deadlines[i]) end
      push(record, next_raw, number, side)
      if batch_ids[i] then revive_member(batch_ids[i], id) end
    end
    redis.call('HDEL', orders, id)
    take(DEAD, raw, offset)
  end
end
remove_taken()
write_batches()
write_counters()
return { answers, next_offsets() }
