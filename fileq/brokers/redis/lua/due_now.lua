#!lua flags=allow-oom
-- Make jobs due by id: move each from the scheduled set to the end of its queue, in the order of the call.
--
-- own KEYS   the record of each job
-- returns    for each: 1 if it was scheduled, retrying or deferred, else 0
local total = #KEYS - own_keys
local answers = {}
require_access(SCHEDULED, 'zset', 'ZSCORE', 'ZREM')
require_queues('LPUSH')
require_record_permissions()
for i = 1, total do require_type(KEYS[own_keys + i], 'hash') end

for i = 1, total do
  local record = KEYS[own_keys + i]
  local was = redis.call('HMGET', record, 'state', 'json', 'queue')
  local is_waiting = was[2] and DELAYED[was[1]]
  answers[i] = is_waiting and redis.call('ZSCORE', SCHEDULED, was[2]) and 1 or 0
  if answers[i] == 1 then
    push(record, was[2], queue_number[was[3] or ''] or QUEUES, 'LPUSH')
    redis.call('ZREM', SCHEDULED, was[2])
  end
end
return answers
