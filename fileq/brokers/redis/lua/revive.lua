#!lua
-- Revive dead jobs: move each from the dead-letter list to its queue.
--
-- own KEYS   the record of each job
-- own ARGV   of each job: raw, next_raw, queue number if the record has none, 'u' = the bytes are no job, so the next
--            claim adopts them again
-- returns    for each: 1, or 0 if it is no longer in the list
local total = (#ARGV - own_args) / 4
local answers = {}
require_access(DEAD, 'list', 'LPOS', 'LREM')
require_counters()
require_queues('LPUSH')
for i = 1, total do require_type(KEYS[own_keys + i], 'hash') end
require_record_permissions()

for i = 1, total do
  local a, record = own_args + (i - 1) * 4, KEYS[own_keys + i]
  local raw, next_raw = ARGV[a + 1], ARGV[a + 2]
  if redis.call('LPOS', DEAD, raw, 'RANK', -1) then
    local was = redis.call('HMGET', record, 'queue', 'created')
    local number = queue_number[was[1] or ''] or tonumber(ARGV[a + 3])
    if ARGV[a + 4] == 'u' then
      redis.call('DEL', record)
      push_without_record(next_raw, number, 'LPUSH')
    else
      redis.call('HSET', record, 'error', '', 'ended', '0', 'cancel', '0', 'created', was[2] or NOW)
      push(record, next_raw, number, 'LPUSH')
    end
    redis.call('LREM', DEAD, -1, raw)
    answers[i] = 1
  else
    answers[i] = 0
  end
end
write_counters()
return answers
