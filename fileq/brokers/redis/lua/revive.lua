#!lua
-- Revive dead jobs: move each from the dead-letter list to its queue.
--
-- own KEYS   of each job: its record, orders
-- own ARGV   the windows (prelude/search.lua); of each job: id, raw, next_raw, queue number if the record has none,
--            'u' = the bytes are no job, so the next claim adopts them again
-- returns    for each: 1, or 0 if it is no longer in the list, or far; next_offsets()
local STRIDE = 5
require_access(DEAD, 'list', 'LINDEX', 'LSET', 'LREM')
require_counters()
require_queues('LPUSH')
open_windows()
local total = (#ARGV - own_args) / STRIDE
local answers = {}
for i = 1, total do require_type(KEYS[own_keys + 2 * i - 1], 'hash') end
if total > 0 then require_access(KEYS[own_keys + 2], 'hash', 'HDEL') end
require_record_permissions()

for i = 1, total do
  local a, record = own_args + (i - 1) * STRIDE, KEYS[own_keys + 2 * i - 1]
  local raw, next_raw = ARGV[a + 2], ARGV[a + 3]
  local offset = find(DEAD, raw)
  answers[i] = offset == FAR and FAR or offset and 1 or 0
  if answers[i] == 1 then
    local was = redis.call('HMGET', record, 'queue', 'created')
    local number = queue_number[was[1] or ''] or tonumber(ARGV[a + 4])
    if ARGV[a + 5] == 'u' then
      redis.call('DEL', record)
      push_without_record(next_raw, number, 'LPUSH')
    else
      redis.call('HSET', record, 'error', '', 'ended', '0', 'cancel', '0', 'created', was[2] or NOW)
      push(record, next_raw, number, 'LPUSH')
    end
    redis.call('HDEL', KEYS[own_keys + 2 * i], ARGV[a + 1])
    take(DEAD, raw, offset)
  end
end
remove_taken()
write_counters()
return { answers, next_offsets() }
