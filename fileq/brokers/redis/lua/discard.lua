#!lua flags=allow-oom
-- Discard dead jobs with their records.
--
-- own KEYS   a record a job
-- own ARGV   of each job: raw as it lies in the list
-- returns    how many were there
local total, gone = #ARGV - own_args, 0
must_take(DEAD, 'list', 'LREM')
must_count()
for i = 1, total do must_take(KEYS[own_keys + i], 'hash', 'HMGET', 'DEL') end
for i = 1, total do
  if redis.call('LREM', DEAD, -1, ARGV[own_args + i]) == 1 then
    local was = redis.call('HMGET', KEYS[own_keys + i], 'state', 'queued')
    if was[1] == 'dead' and (was[2] or '0') == '0' then redis.call('DEL', KEYS[own_keys + i]) end
    gone = gone + 1
  end
end
count('deleted', gone)
write_counts()
return gone
