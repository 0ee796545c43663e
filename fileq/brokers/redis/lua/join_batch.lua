#!lua
-- Make jobs that exist members of an open batch. One that has ended is counted at once; one without a record counts as
-- completed. A server whose memory is full refuses the call.
--
-- own KEYS   those of require_batch() (prelude/batches.lua); then the record of each job
-- own ARGV   1 id; then the id of each job
-- returns    joined, member, elsewhere or closed for each
require_batch()
require_record_permissions()
local id = ARGV[own_args + 1]
local members, dead, known = KEYS[own_keys + 2], KEYS[own_keys + 3], KEYS[own_keys + 4]
local batch, answers, records, ids = batch_of(id), {}, {}, {}
for i = 1, #ARGV - own_args - 1 do
  records[i], ids[i] = KEYS[own_keys + #BATCH_KEYS + i], ARGV[own_args + 1 + i]
  require_type(records[i], 'hash')
end

local function is_member(member)
  for _, set in ipairs({ members, dead, known }) do
    if redis.call('SISMEMBER', set, member) == 1 then return true end
  end
  return false
end

local function join(record, member)
  if not batch then return 'closed' end
  write_added(batch)
  local was = redis.call('HMGET', record, 'state', 'batch', 'error')
  local state, is_elsewhere = was[1], was[2] and was[2] ~= id
  if was[2] == id or is_member(member) then return 'member' end
  if not is_batch_open(id) then return 'closed' end
  if is_elsewhere and (UNFINISHED[state] or state == 'dead') then return 'elsewhere' end
  add_member(batch, member)
  if state and not was[2] then redis.call('HSET', record, 'batch', id) end
  if UNFINISHED[state] then return 'joined' end
  if state ~= 'dead' then redis.call('SADD', known, member) end
  count_member(id, member, state or 'completed', was[3] or '')
  return 'joined'
end

for i, record in ipairs(records) do answers[i] = join(record, ids[i]) end
write_batches()
write_counters()
publish_events()
return answers
