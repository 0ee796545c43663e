#!lua flags=allow-oom
-- Cancel jobs by id: a waiting job moves from its queue or the scheduled set to the cancelled list; a running job is
-- marked, and its worker learns of it at its next renewal.
--
-- own KEYS   the record of each job
-- own ARGV   the windows (prelude/search.lua); of each job: its event, the proof of its absence ('' = none)
-- returns    cancelled, requested, ended, unknown or far for each; next_offsets()
require_ended_list(CANCELLED)
require_access(SCHEDULED, 'zset', 'ZREM')
require_queues('LINDEX', 'LSET', 'LREM')
open_windows(true)
local total = (#ARGV - own_args) / 2
local answers, raws = {}, {}
for i = 1, total do require_type(KEYS[own_keys + i], 'hash') end
require_record_permissions()
require_counters()

-- Whether the job was there; FAR if that is not known. It leaves its queue at the end of the script.
local function remove(state, raw, number, was, proof)
  if state == 'pending' and number then
    local list = queue_key[number]
    local offset = find(list, raw)
    if offset == FAR and not is_absent(list, raw, was, proof) then return FAR end
    if not offset or offset == FAR then return false end
    take(list, raw, offset)
    return true
  end
  if state == 'scheduled' or state == 'retrying' then return redis.call('ZREM', SCHEDULED, raw) == 1 end
  return false
end

local function cancel(i)
  local record = KEYS[own_keys + i]
  local was = redis.call('HMGET', record, unpack(PROOF_FIELDS))
  local state, raw, number, queued = was[1], was[2], queue_number[was[3] or ''], tonumber(was[6]) or 0
  if not state then return 'unknown' end
  if state == 'running' then
    redis.call('HSET', record, 'cancel', '1')
    return 'requested'
  end
  local is_removed = remove(state, raw, number, was, ARGV[own_args + 2 * i])
  if is_removed == FAR then return 'far' end
  if not is_removed then return 'ended' end
  if state == 'pending' then queued = queued - 1 end
  redis.call('HSET', record, 'state', 'cancelled', 'error', 'cancelled', 'ended', NOW, 'queued', queued)
  redis.call('HDEL', record, 'deferred')
  if queued == 0 then redis.call('PEXPIRE', record, HISTORY_TTL) end
  raws[#raws + 1] = raw
  count('cancelled')
  add_event(ARGV[own_args + 2 * i - 1])
  return 'cancelled'
end

for i = 1, total do answers[i] = cancel(i) end
push_ended(CANCELLED, 'cancelled', raws)
remove_taken()
write_counters()
publish_events()
return { answers, next_offsets() }
