#!lua
-- Restore lost jobs: the record says in which place the job is, and it is not there. The job returns to that place; a
-- running job that no slot holds returns to the front of its queue. A job whose queue is not in this configuration is
-- left alone. In mode 'look' nothing changes: look_for_lost is this script, declared as one that only reads.
--
-- own KEYS   the record of each job
-- own ARGV   the windows (prelude/search.lua); 'look' or 'repair'; pattern of processing lists, split at its %s; of each
--            job: the proof of its absence ('' = none, see prelude/search.lua)
-- returns    for each: 1 if the job is lost (and after a repair it is back), else 0, or far; next_offsets()
open_windows()
local is_repair, before_slot, after_slot = ARGV[own_args + 1] == 'repair', ARGV[own_args + 2], ARGV[own_args + 3]
local answers, lost = {}, {}
require_permission(KEYS[own_keys + 1] or RECORDS, 'HMGET')
if is_repair then
  require_access(SCHEDULED, 'zset', 'ZADD')
  require_access(DEAD, 'list', 'LPUSH')
  require_queues('RPUSH')
  require_record_permissions()
end

local function is_in(list, job)
  local offset = find(list, job.raw)
  if offset == FAR and is_absent(list, job.raw, job.was, job.proof) then return nil end
  return offset
end

local function is_there(job)
  if job.state == 'pending' then return is_in(queue_key[job.number], job) end
  if DELAYED[job.state] then return read('ZSCORE', SCHEDULED, job.raw) end
  if job.state == 'dead' then return is_in(DEAD, job) end
  if job.state ~= 'running' then return true end -- an ended job may be in no place
  return job.worker and read('LPOS', before_slot .. job.worker .. after_slot, job.raw)
end

for i = 1, #KEYS - own_keys do
  local was = read('HMGET', KEYS[own_keys + i], unpack(PROOF_FIELDS))
  local job = {
    record = KEYS[own_keys + i], state = was[1], raw = was[2], number = queue_number[was[3] or ''], worker = was[4],
    due = was[5] or '0', queued = tonumber(was[6]) or 0, was = was, proof = ARGV[own_args + 3 + i],
  }
  local found = not (job.state and job.raw and job.number) or lost[job.record] or is_there(job)
  local is_lost = not found
  answers[i] = found == FAR and FAR or is_lost and 1 or 0
  if is_lost then lost[job.record] = job end -- the caller may name a job twice; it is restored once
end

local function restore(job)
  if job.state == 'dead' then
    redis.call('LPUSH', DEAD, job.raw)
  elseif DELAYED[job.state] then
    redis.call('ZADD', SCHEDULED, job.due, job.raw)
  else
    local queued = job.state == 'pending' and math.max(job.queued, 1) or job.queued + 1
    redis.call('HSET', job.record, 'state', 'pending', 'queued', queued)
    redis.call('RPUSH', queue_key[job.number], job.raw)
  end
  redis.call('HINCRBY', job.record, 'restored', 1)
  redis.call('PERSIST', job.record)
end

if is_repair then
  for _, job in pairs(lost) do restore(job) end
end
return { answers, next_offsets() }
