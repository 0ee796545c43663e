#!lua flags=allow-oom
-- Settle claims, verb by verb, and then claim for the free slots (claim.lua).
--
-- own KEYS   those of the parts, one part after the other; of settlements: see prelude/settlements.lua
-- own ARGV   1 how many parts; of each part: its verb and the numbers of its settlements or slots, of its keys and of
--            its arguments; then the arguments of the parts, one part after the other
-- returns    what each part returns; an error in the position of a part that was refused and changed nothing. The variant
--            for members of batches returns one value more: the ids of the batches that it has finished. Another
--            variant that meets a member refuses the part with the code BATCH and claims nothing.

-- The verbs: each moves the jobs of its settlements from their slots' processing lists to another place, and returns done,
-- done already or fenced for each. A script gets only those that it runs (scripts.py). The first: to the
-- completed list.
function PARTS.complete()
  require_ended_list(COMPLETED)
  require_permission(LEDGER, 'HGET', 'HSET')
  local raws = {}
  return settle(function(job)
    local has_copies, was = end_attempt(job, 'completed', 'ended', NOW)
    if job.result ~= (was[12] or '') then redis.call('HSET', job.record, 'result', job.result) end
    expire_record(job, has_copies)
    raws[#raws + 1] = job.next_raw
    count('completed')
    if job.superseded then count('superseded') end
    if job.path ~= '' then
      remember_version(job.path, redis.call('HGET', LEDGER, job.path), job.signature, job.device, job.id)
    end
  end, function() push_ended(COMPLETED, 'completed', raws) end)
end

-- To the cancelled list: running jobs that were cancelled.
function PARTS.cancel()
  require_ended_list(CANCELLED)
  local raws = {}
  return settle(function(job)
    local has_copies = end_attempt(job, 'cancelled', 'ended', NOW)
    expire_record(job, has_copies)
    raws[#raws + 1] = job.next_raw
    count('cancelled')
  end, function() push_ended(CANCELLED, 'cancelled', raws) end)
end

-- To the scheduled set, due after the delay of each.
function PARTS.retry()
  require_access(SCHEDULED, 'zset', 'ZSCORE', 'ZADD')
  return settle(move_to_scheduled)
end

-- The same, but no attempt is counted.
function PARTS.defer()
  require_access(SCHEDULED, 'zset', 'ZSCORE', 'ZADD')
  return settle(defer_to_scheduled)
end

-- To the dead-letter list.
function PARTS.bury()
  require_access(DEAD, 'list', 'LPUSH')
  return settle(move_to_dead)
end

-- To the front of their queues.
function PARTS.release()
  require_queues('RPUSH')
  return settle(move_to_front)
end

local parts = tonumber(ARGV[own_args + 1])
local head, answers = own_args + 1, {}
own_args = head + 4 * parts
require_record_permissions()
require_counters()

for i = 1, parts do
  local verb, size, key_count, argument_count = unpack(ARGV, head + 1, head + 4)
  local next_keys, next_args = own_keys + key_count, own_args + argument_count
  own_size = tonumber(size)
  local ok, answer = pcall(PARTS[verb])
  answers[i] = answer
  if not ok and type(answer) ~= 'table' then answers[i] = { err = 'ERR ' .. tostring(answer) } end
  head, own_keys, own_args = head + 4, next_keys, next_args
end
for slot in pairs(freed) do empty_list(slot) end -- also after a claim part that was refused
if joining then
  joining.write()
  answers[parts + 1] = joining.finished
end
write_counters()
publish_events()
return answers
