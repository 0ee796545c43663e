#!lua flags=allow-oom
-- Cancel jobs by id: a waiting job moves from its queue or the scheduled set to the cancelled list; a running job is
-- marked, and its worker learns of it at its next renewal.
--
-- own KEYS   the record of each job
-- own ARGV   of each job: its event, hint (see prelude/search.lua)
-- returns    cancelled, requested, ended, unknown or far for each; fewer answers than jobs if the search took long
local total = (#ARGV - own_args) / 2
local answers, raws = {}, {}
require_ended_list(CANCELLED)
require_access(SCHEDULED, 'zset', 'ZREM')
require_queues('LPOS', 'LLEN', 'LREM')
for i = 1, total do require_type(KEYS[own_keys + i], 'hash') end
require_record_permissions()
require_counters()

-- Whether the job was there; FAR if that is not known.
local function remove(state, raw, number, hint)
  if state == 'pending' and number then
    local position = find(queue_key[number], raw, 1, hint)
    if position == FAR then return FAR end
    if position then remove_at(queue_key[number], raw, 1, position) end
    return position ~= nil
  end
  if state == 'scheduled' or state == 'retrying' then return redis.call('ZREM', SCHEDULED, raw) == 1 end
  return false
end

for i = 1, total do
  if has_searched_enough() then break end
  local record = KEYS[own_keys + i]
  local was = redis.call('HMGET', record, 'state', 'json', 'queue', 'queued')
  local state, raw, number, queued = was[1], was[2], queue_number[was[3] or ''], tonumber(was[4]) or 0
  local is_removed = state and remove(state, raw, number, ARGV[own_args + 2 * i])
  if not state then
    answers[i] = 'unknown'
  elseif state == 'running' then
    redis.call('HSET', record, 'cancel', '1')
    answers[i] = 'requested'
  elseif is_removed == FAR then
    answers[i] = 'far'
  elseif is_removed then
    if state == 'pending' then queued = queued - 1 end
    redis.call('HSET', record, 'state', 'cancelled', 'error', 'cancelled', 'ended', NOW, 'queued', queued)
    redis.call('HDEL', record, 'deferred')
    if queued == 0 then redis.call('PEXPIRE', record, HISTORY_TTL) end
    raws[#raws + 1] = raw
    count('cancelled')
    add_event(ARGV[own_args + 2 * i - 1])
    answers[i] = 'cancelled'
  else
    answers[i] = 'ended'
  end
end
push_ended(CANCELLED, 'cancelled', raws)
write_counters()
publish_events()
return answers
