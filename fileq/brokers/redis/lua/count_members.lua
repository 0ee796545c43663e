#!lua flags=allow-oom
-- Count members that have ended without being counted, because the server lost a key.
-- Child batches that have finished uncounted are counted too.
--
-- own KEYS   those of require_batch() (prelude/batches.lua); then the record of each job
-- own ARGV   1 id; then the id of each job
-- returns    how many jobs
local CHILDREN_MAX = 100
require_batch()
local children_key = KEYS[own_keys + 5]
require_permission(children_key, 'SRANDMEMBER')
require_permission(RECORDS .. 'any', 'HMGET')
local id, counted = ARGV[own_args + 1], 0
local batch = batch_of(id)
if not batch then return 0 end
for i = 1, #ARGV - own_args - 1 do
  local member, record = ARGV[own_args + 1 + i], KEYS[own_keys + #BATCH_KEYS + i]
  local was = redis.pcall('HMGET', record, 'state', 'error')
  local ending = not was.err and (was[1] or 'deleted')
  if (ENDINGS[ending] or ending == 'deleted') and count_member(id, member, ending, was[2] or '') then
    counted = counted + 1
  end
end
for _, child_id in ipairs(redis.call('SRANDMEMBER', children_key, CHILDREN_MAX)) do count_child(batch, child_id) end
-- Members that no key names any more, because the set was lost.
local missing = batch.total - batch.completed - batch.dead - batch.cancelled - batch.deleted - batch.unfinished
if missing > 0 then change_batch(batch, 'deleted', batch.deleted + missing) end
finish_batch(batch)
write_batches()
write_counters()
publish_events()
return counted
