#!lua flags=allow-oom
-- Cancel jobs by id: a waiting job moves from its queue or the scheduled set to the cancelled list; a running job is
-- marked, and its worker learns of it at its next renewal, which the new number of requests makes due.
--
-- own KEYS   1 cancels; of each job: its record, then those of follow_ups.lua
-- own ARGV   the windows (prelude/search.lua); 1 = only members of cancelled batches; of each job: those of
--            follow_ups.lua, then the proof of its absence ('' = none)
-- returns    cancelled, requested, requested_before, ended, unknown, kept or far for each; next_offsets()
joining = JOINING
require_withdrawals()
require_access(SCHEDULED, 'zset', 'ZREM')
require_queues('LINDEX', 'LSET', 'LREM')
open_windows(true)
local jobs, ids, answers, is_any_requested = {}, {}, {}, false
own_keys, own_args = own_keys + 1, own_args + 1
local cancels, in_cancelled_batch = KEYS[own_keys], ARGV[own_args] == '1'
require_access(cancels, 'string', 'INCRBY')
while own_args < #ARGV do
  own_keys = own_keys + 1
  local job = { record = KEYS[own_keys] }
  job.extras = next_extras()
  own_args = own_args + 1
  job.proof = ARGV[own_args]
  job.batch = read('HMGET', job.record, 'batch')[1]
  require_extras(job.extras)
  jobs[#jobs + 1], ids[#ids + 1] = job, job.batch or false
end
require_counting(ids)

local function cancel(job)
  local was = redis.call('HMGET', job.record, unpack(PROOF_FIELDS))
  local state, raw, queue, queued = was[1], was[2], was[3] or '', tonumber(was[6]) or 0
  if not state then return 'unknown' end
  if in_cancelled_batch then
    if not job.batch or is_batch_cancelled(job.batch, string.sub(job.record, #RECORDS + 1)) == 0 then return 'kept' end
  end
  if state == 'running' then
    if redis.call('HMGET', job.record, 'cancel')[1] == '1' then return 'requested_before' end
    redis.call('HSET', job.record, 'cancel', '1')
    is_any_requested = true
    return 'requested'
  end
  local is_removed = take_waiting(raw, queue_number[queue], was, job.proof)
  if is_removed == FAR then return 'far' end
  if not is_removed then return 'ended' end
  withdraw(job.record, queue, raw, state == 'pending' and queued - 1 or queued)
  withdraw_member(job)
  return 'cancelled'
end

for i, job in ipairs(jobs) do answers[i] = cancel(job) end
if is_any_requested then redis.call('INCRBY', cancels, 1) end
list_withdrawn()
remove_taken()
write_batches()
write_counters()
publish_events()
return { answers, next_offsets() }
