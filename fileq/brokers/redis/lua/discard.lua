#!lua flags=allow-oom
-- Discard dead jobs with their records, and count members of batches as deleted.
--
-- own KEYS   the record of each job
-- own ARGV   the windows (prelude/search.lua); of each job: raw
-- returns    for each: 1, or 0 if it was not in the dead-letter list, or far; next_offsets()
require_access(DEAD, 'list', 'LINDEX', 'LSET', 'LREM')
require_counters()
open_windows()
local total, answers, discarded = #ARGV - own_args, {}, 0
local batch_ids = {}
for i = 1, total do
  require_permission(KEYS[own_keys + i], 'HMGET', 'DEL')
  batch_ids[i] = read('HMGET', KEYS[own_keys + i], 'batch')[1]
end
require_counting(batch_ids)
for i = 1, total do
  local raw = ARGV[own_args + i]
  local offset = find(DEAD, raw)
  answers[i] = offset == FAR and FAR or offset and 1 or 0
  if answers[i] == 1 then
    local record, batch = KEYS[own_keys + i], batch_ids[i]
    if is_foreign_dead(record, raw) then record, batch = foreign_record(raw), nil end
    local was = redis.call('HMGET', record, 'state', 'queued')
    if not was[1] then -- the job that had its id is forgotten
      record, batch = foreign_record(raw), nil
      was = redis.call('HMGET', record, 'state', 'queued')
    end
    take(DEAD, raw, offset)
    local is_last = was[1] == 'dead' and not has_copy(DEAD, raw) -- another dead copy needs the record
    if is_last and batch then delete_member(batch, string.sub(record, #RECORDS + 1)) end
    if is_last and (was[2] or '0') == '0' then redis.call('DEL', record) end
    discarded = discarded + 1
  end
end
remove_taken()
count('deleted', discarded)
write_batches()
write_counters()
publish_events()
return { answers, next_offsets() }
