#!lua flags=allow-oom
-- Discard dead jobs with their records.
--
-- own KEYS   the record of each job
-- own ARGV   the windows (prelude/search.lua); of each job: raw
-- returns    for each: 1, or 0 if it was not in the dead-letter list, or far; next_offsets()
require_access(DEAD, 'list', 'LINDEX', 'LSET', 'LREM')
require_counters()
open_windows()
local total, answers, discarded = #ARGV - own_args, {}, 0
for i = 1, total do require_access(KEYS[own_keys + i], 'hash', 'HMGET', 'DEL') end
for i = 1, total do
  local raw = ARGV[own_args + i]
  local offset = find(DEAD, raw)
  answers[i] = offset == FAR and FAR or offset and 1 or 0
  if answers[i] == 1 then
    local was = redis.call('HMGET', KEYS[own_keys + i], 'state', 'queued')
    if was[1] == 'dead' and (was[2] or '0') == '0' then redis.call('DEL', KEYS[own_keys + i]) end
    take(DEAD, raw, offset)
    discarded = discarded + 1
  end
end
remove_taken()
count('deleted', discarded)
write_counters()
return { answers, next_offsets() }
