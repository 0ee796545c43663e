#!lua flags=allow-oom
-- Reap a slot that died: move each of its jobs as its settlement says, with its order and its follow-ups; count those that
-- end in their batches; deregister the slot when its list is empty. All in one step, and only while the slot has no
-- heartbeat. That of a slot whose process is gone does not count and is deleted.
--
-- own KEYS   1 processing list, 2 heartbeat; then the keys of the settlements
-- own ARGV   1 slot, 2 whether its process is gone (1), 3 how many settlements, then their verbs (retry, bury or release),
--            then the settlements; see prelude/settlements.lua
-- returns    done or fenced for each; fenced for all while the slot has a heartbeat
read_hook, joining = read_follow_ups, JOINING
local processing, heartbeat = KEYS[own_keys + 1], KEYS[own_keys + 2]
local slot, is_gone, total = ARGV[own_args + 1], ARGV[own_args + 2] == '1', tonumber(ARGV[own_args + 3])
local moves = { retry = move_to_scheduled, bury = move_to_dead, release = move_to_front }
local answers, held_jobs, seen = {}, {}, {}

require_access(processing, 'list', 'LPOS', 'LREM', 'EXISTS')
require_access(WORKERS, 'hash', 'HDEL')
require_access(SETTLED, 'hash', 'HDEL')
require_access(SCHEDULED, 'zset', 'ZSCORE', 'ZADD')
require_access(DEAD, 'list', 'LPUSH')
require_queues('RPUSH')
require_record_permissions()
require_counters()

if is_gone then require_access(heartbeat, 'string', 'DEL') end
local is_alive = read('EXISTS', heartbeat) == 1 and not is_gone
local verbs = own_args + 3
own_keys, own_args = own_keys + 2, own_args + 3 + total
for i = 1, total do
  local job = next_settlement()
  if is_alive or seen[job.raw] or not redis.call('LPOS', processing, job.raw) then
    answers[i] = 'fenced'
  else
    read_before_move(job)
    seen[job.raw] = true
    answers[i] = 'done'
    job.move = job.is_foreign and move_to_dead or moves[ARGV[verbs + i]]
    held_jobs[#held_jobs + 1] = job
  end
end
require_orders(held_jobs)
require_members(held_jobs)
for _, job in ipairs(held_jobs) do
  job.move(job)
  keep_order(job)
  add_event(job.event)
  keep_member(job)
end
for _, job in ipairs(held_jobs) do redis.call('LREM', processing, 1, job.raw) end
if is_gone then redis.call('DEL', heartbeat) end
if not is_alive and redis.call('EXISTS', processing) == 0 then
  redis.call('HDEL', WORKERS, slot)
  redis.call('HDEL', SETTLED, slot)
end
write_batches()
write_counters()
publish_events()
return answers
