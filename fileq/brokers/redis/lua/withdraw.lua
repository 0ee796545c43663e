#!lua flags=allow-oom
-- Cancel jobs by id: a waiting job moves from its queue or the scheduled set to the cancelled list; a running job is
-- marked, and its worker learns of it at its next renewal.
--
-- own KEYS   the record of each job
-- own ARGV   of each job: its event
-- returns    cancelled, requested, ended or unknown for each
local total = #ARGV - own_args
local answers, raws = {}, {}
require_ended_list(CANCELLED)
require_access(SCHEDULED, 'zset', 'ZREM')
require_queues('LREM')
for i = 1, total do require_type(KEYS[own_keys + i], 'hash') end
require_record_permissions()
require_counters()

local function remove(state, raw, number)
  if state == 'pending' and number then return redis.call('LREM', queue_key[number], 1, raw) == 1 end
  if state == 'scheduled' or state == 'retrying' then return redis.call('ZREM', SCHEDULED, raw) == 1 end
  return false
end

for i = 1, total do
  local record = KEYS[own_keys + i]
  local was = redis.call('HMGET', record, 'state', 'json', 'queue', 'queued')
  local state, raw, number, queued = was[1], was[2], queue_number[was[3] or ''], tonumber(was[4]) or 0
  if not state then
    answers[i] = 'unknown'
  elseif state == 'running' then
    redis.call('HSET', record, 'cancel', '1')
    answers[i] = 'requested'
  elseif remove(state, raw, number) then
    if state == 'pending' then queued = queued - 1 end
    redis.call('HSET', record, 'state', 'cancelled', 'error', 'cancelled', 'ended', NOW, 'queued', queued)
    redis.call('HDEL', record, 'deferred')
    if queued == 0 then redis.call('PEXPIRE', record, HISTORY_TTL) end
    raws[#raws + 1] = raw
    count('cancelled')
    add_event(ARGV[own_args + i])
    answers[i] = 'cancelled'
  else
    answers[i] = 'ended'
  end
end
push_ended(CANCELLED, 'cancelled', raws)
write_counters()
publish_events()
return answers
