#!lua flags=no-writes
-- Batches as they are at one moment.
--
-- own KEYS   the hash, the members and the children of each batch
-- own ARGV   1 and 2 pattern of processing lists, split at its %s; then the id of each batch
-- returns    for each: its hash, the number of its unfinished members and child batches, how many of the members a slot
--            holds; an empty hash for one that is unknown
local before_slot, after_slot = ARGV[own_args + 1], ARGV[own_args + 2]
local views, total = {}, #ARGV - own_args - 2
local held_by = {} -- id of a batch → ids of the jobs that slots hold
local unrecorded = {} -- ids of those without a record, which would name the batch
require_permission(RECORDS .. 'any', 'HMGET')
for _, slot in ipairs(read('HKEYS', WORKERS)) do
  local raw = read('LINDEX', before_slot .. slot .. after_slot, -1)
  local id = raw and read_id(raw)
  local record = id and redis.pcall('HMGET', RECORDS .. id, 'state', 'batch') or {}
  if record[2] then
    local held = held_by[record[2]] or {}
    held[id], held_by[record[2]] = true, held
  elseif id and not record[1] then
    unrecorded[id] = true
  end
end
for i = 1, total do
  local k, batch_id, running = own_keys + 3 * (i - 1), ARGV[own_args + 2 + i], 0
  local hash, members, children = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  for _, held in ipairs({ held_by[batch_id] or {}, unrecorded }) do
    for id in pairs(held) do running = running + read('SISMEMBER', members, id) end
  end
  views[i] = { read('HGETALL', hash), read('SCARD', members) + read('SCARD', children), running }
end
return views
