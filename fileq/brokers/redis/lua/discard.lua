#!lua flags=allow-oom
-- Discard dead jobs with their records.
--
-- own KEYS   the record of each job
-- own ARGV   of each job: raw, hint (see prelude/search.lua)
-- returns    for each: 1, or 0 if it was not in the dead-letter list, or far; fewer answers than jobs if the
--            search took long
local total, answers, discarded = (#ARGV - own_args) / 2, {}, 0
require_access(DEAD, 'list', 'LPOS', 'LLEN', 'LREM')
require_counters()
for i = 1, total do require_access(KEYS[own_keys + i], 'hash', 'HMGET', 'DEL') end
for i = 1, total do
  if has_searched_enough() then break end
  local raw = ARGV[own_args + 2 * i - 1]
  local position = find(DEAD, raw, -1, ARGV[own_args + 2 * i])
  answers[i] = position == FAR and FAR or position and 1 or 0
  if answers[i] == 1 then
    remove_at(DEAD, raw, -1, position)
    local was = redis.call('HMGET', KEYS[own_keys + i], 'state', 'queued')
    if was[1] == 'dead' and (was[2] or '0') == '0' then redis.call('DEL', KEYS[own_keys + i]) end
    discarded = discarded + 1
  end
end
count('deleted', discarded)
write_counters()
return answers
