#!lua flags=allow-oom
-- Bury jobs that wait although their deadline has passed: each moves from its queue or the scheduled set to the
-- dead-letter list, with its order, its follow-ups and its batch, if it still waits with the same bytes.
--
-- own KEYS   of each job: those of its settlement (prelude/settlements.lua)
-- own ARGV   the windows (prelude/search.lua); of each job: those of its settlement, then the proof of its absence ('' =
--            none)
-- returns    done, fenced or far for each; next_offsets()
read_hook, joining = read_follow_ups, JOINING
require_access(DEAD, 'list', 'LPUSH')
require_access(SCHEDULED, 'zset', 'ZREM')
require_access(DEADLINES, 'zset', 'ZREM')
require_queues('LINDEX', 'LSET', 'LREM')
require_record_permissions()
require_counters()
open_windows(true)
local jobs, answers = {}, {}
while own_args < #ARGV do
  local job = next_settlement()
  own_args = own_args + 1
  job.proof, job.was = ARGV[own_args], read_record(job)
  jobs[#jobs + 1] = job
end
require_orders(jobs)
require_members(jobs)

local function bury(job)
  local was, id = redis.call('HMGET', job.record, unpack(PROOF_FIELDS)), string.sub(job.record, #RECORDS + 1)
  local is_waiting = UNFINISHED[was[1]] and was[1] ~= 'running'
  if not is_waiting or was[2] ~= job.raw or queue_number[was[3] or ''] ~= job.queue then return 'fenced' end
  local is_taken = take_waiting(job.raw, job.queue, was, job.proof)
  if is_taken == FAR then return 'far' end
  redis.call('ZREM', DEADLINES, id)
  if not is_taken then return 'fenced' end
  local queued = tonumber(was[6]) or 0
  if was[1] == 'pending' then queued = math.max(0, queued - 1) end
  redis.call('HSET', job.record, 'queued', int_text(queued), 'started', NOW, 'due', '0')
  job.was[1] = NOW
  move_to_dead(job)
  keep_order(job)
  add_event(job.event)
  keep_member(job)
  return 'done'
end

for i, job in ipairs(jobs) do answers[i] = bury(job) end
remove_taken()
write_batches()
write_counters()
publish_events()
return { answers, next_offsets() }
