#!lua flags=allow-oom
-- Cancel jobs by id: a waiting one leaves its queue or the scheduled set for the cancelled list; a running one is
-- marked, and its worker is told at its next renewal.
--
-- own KEYS   a record a job
-- own ARGV   of each job: its event
-- returns    cancelled, requested, ended or unknown for each
local total = #ARGV - own_args
local answers, raws = {}, {}
must_list_ended(CANCELLED)
must_take(SCHEDULED, 'zset', 'ZREM')
for i = 1, QUEUES do must_take(queue_key[i], 'list', 'LREM') end
for i = 1, total do must_be(KEYS[own_keys + i], 'hash') end
must_keep_records()
must_count()

local function leave(state, json, number)
  if state == 'pending' and number then return redis.call('LREM', queue_key[number], 1, json) == 1 end
  if state == 'scheduled' or state == 'retrying' then return redis.call('ZREM', SCHEDULED, json) == 1 end
  return false
end

for i = 1, total do
  local record = KEYS[own_keys + i]
  local was = redis.call('HMGET', record, 'state', 'json', 'queue', 'queued')
  local state, json, number, queued = was[1], was[2], queue_number[was[3] or ''], tonumber(was[4]) or 0
  if not state then
    answers[i] = 'unknown'
  elseif state == 'running' then
    redis.call('HSET', record, 'cancel', '1')
    answers[i] = 'requested'
  elseif leave(state, json, number) then
    if state == 'pending' then queued = queued - 1 end
    redis.call('HSET', record, 'state', 'cancelled', 'error', 'cancelled', 'ended', NOW, 'queued', queued)
    if queued == 0 then redis.call('PEXPIRE', record, HISTORY_TTL) end
    raws[#raws + 1] = json
    count('cancelled')
    tell(ARGV[own_args + i])
    answers[i] = 'cancelled'
  else
    answers[i] = 'ended'
  end
end
list_ended(CANCELLED, 'cancelled', raws)
write_counts()
publish()
return answers
