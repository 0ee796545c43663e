#!lua flags=allow-oom
-- Discard dead jobs with their records.
--
-- own KEYS   the record of each job
-- own ARGV   of each job: raw
-- returns    how many jobs were in the dead-letter list
local total, discarded = #ARGV - own_args, 0
require_access(DEAD, 'list', 'LREM')
require_counters()
for i = 1, total do require_access(KEYS[own_keys + i], 'hash', 'HMGET', 'DEL') end
for i = 1, total do
  if redis.call('LREM', DEAD, -1, ARGV[own_args + i]) == 1 then
    local was = redis.call('HMGET', KEYS[own_keys + i], 'state', 'queued')
    if was[1] == 'dead' and (was[2] or '0') == '0' then redis.call('DEL', KEYS[own_keys + i]) end
    discarded = discarded + 1
  end
end
count('deleted', discarded)
write_counters()
return discarded
