#!lua flags=allow-oom
-- Reap a slot that died: each of its jobs goes where its settlement says, and when none is left the slot is forgotten,
-- all in one step, and only while the slot has no heartbeat.
--
-- own KEYS   1 processing list, 2 heartbeat; then the keys of the settlements
-- own ARGV   1 slot, 2 how many settlements, then their verbs (retry, bury or release), then the settlements
-- returns    done or fenced for each; fenced for all when the slot has a heartbeat
local processing, heartbeat = KEYS[own_keys + 1], KEYS[own_keys + 2]
local slot, total = ARGV[own_args + 1], tonumber(ARGV[own_args + 2])
local moves = { retry = to_scheduled, bury = to_dead, release = to_front }
local answers, held, seen = {}, {}, {}

must_take(processing, 'list', 'LPOS', 'LREM', 'EXISTS')
must_take(WORKERS, 'hash', 'HDEL')
must_take(SETTLED, 'hash', 'HDEL')
must_take(SCHEDULED, 'zset', 'ZSCORE', 'ZADD')
must_take(DEAD, 'list', 'LPUSH')
for i = 1, QUEUES do must_take(queue_key[i], 'list', 'RPUSH') end
must_keep_records()
must_count()

local is_alive = read('EXISTS', heartbeat) == 1
local verbs = own_args + 2
own_keys, own_args = own_keys + 2, own_args + 2 + total
for i = 1, total do
  local job = next_settlement()
  if is_alive or seen[job.raw] or not redis.call('LPOS', processing, job.raw) then
    answers[i] = 'fenced'
  else
    look_up(job)
    seen[job.raw] = true
    answers[i] = 'done'
    job.move = moves[ARGV[verbs + i]]
    held[#held + 1] = job
  end
end
for _, job in ipairs(held) do
  job.move(job)
  tell(job.event)
end
for _, job in ipairs(held) do redis.call('LREM', processing, 1, job.raw) end
if not is_alive and redis.call('EXISTS', processing) == 0 then
  redis.call('HDEL', WORKERS, slot)
  redis.call('HDEL', SETTLED, slot)
end
write_counts()
publish()
return answers
