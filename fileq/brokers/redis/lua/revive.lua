#!lua
-- Revive dead jobs: move each from the dead-letter list to its queue.
--
-- own KEYS   the record of each job
-- own ARGV   the windows (prelude/search.lua); of each job: raw, next_raw, queue number if the record has none,
--            'u' = the bytes are no job, so the next claim adopts them again
-- returns    for each: 1, or 0 if it is no longer in the list, or far; next_offsets()
local STRIDE = 4
require_access(DEAD, 'list', 'LINDEX', 'LSET', 'LREM')
require_counters()
require_queues('LPUSH')
open_windows()
local total = (#ARGV - own_args) / STRIDE
local answers = {}
for i = 1, total do require_type(KEYS[own_keys + i], 'hash') end
require_record_permissions()

for i = 1, total do
  local a, record = own_args + (i - 1) * STRIDE, KEYS[own_keys + i]
  local raw, next_raw = ARGV[a + 1], ARGV[a + 2]
  local offset = find(DEAD, raw)
  answers[i] = offset == FAR and FAR or offset and 1 or 0
  if answers[i] == 1 then
    local was = redis.call('HMGET', record, 'queue', 'created')
    local number = queue_number[was[1] or ''] or tonumber(ARGV[a + 3])
    if ARGV[a + 4] == 'u' then
      redis.call('DEL', record)
      push_without_record(next_raw, number, 'LPUSH')
    else
      redis.call('HSET', record, 'error', '', 'ended', '0', 'cancel', '0', 'created', was[2] or NOW)
      push(record, next_raw, number, 'LPUSH')
    end
    take(DEAD, raw, offset)
  end
end
remove_taken()
write_counters()
return { answers, next_offsets() }
