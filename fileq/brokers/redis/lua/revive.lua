#!lua
-- Revive dead jobs: each leaves the dead-letter list for its queue, as a new beginning.
--
-- own KEYS   a record a job
-- own ARGV   of each job: raw as it lies in the list, raw as it goes on, queue's number if the record does not tell,
--            'u' = no job, so the next claim adopts it anew
-- returns    1 or 0 (not there any more) for each
local total = (#ARGV - own_args) / 4
local answers = {}
must_take(DEAD, 'list', 'LPOS', 'LREM')
must_count()
for i = 1, QUEUES do must_take(queue_key[i], 'list', 'LPUSH') end
for i = 1, total do must_be(KEYS[own_keys + i], 'hash') end
must_keep_records()

for i = 1, total do
  local a, record = own_args + (i - 1) * 4, KEYS[own_keys + i]
  local raw, onward = ARGV[a + 1], ARGV[a + 2]
  if redis.call('LPOS', DEAD, raw, 'RANK', -1) then
    local was = redis.call('HMGET', record, 'queue', 'created')
    local number = queue_number[was[1] or ''] or tonumber(ARGV[a + 3])
    if ARGV[a + 4] == 'u' then
      redis.call('DEL', record)
      disown(onward, number, 'LPUSH')
    else
      redis.call('HSET', record, 'error', '', 'ended', '0', 'cancel', '0', 'created', was[2] or NOW)
      push(record, onward, number, 'LPUSH')
    end
    redis.call('LREM', DEAD, -1, raw)
    answers[i] = 1
  else
    answers[i] = 0
  end
end
write_counts()
return answers
