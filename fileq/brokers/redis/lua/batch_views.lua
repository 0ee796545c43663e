#!lua flags=no-writes
-- Batches as they are at one moment.
--
-- own KEYS   the hash, the members and the children of each batch
-- own ARGV   1 and 2 pattern of processing lists, split at its %s; then the id of each batch
-- returns    for each: its hash, the number of its unfinished members and child batches, how many of the members a slot
--            holds; an empty hash for one that is unknown
local views, total = {}, #ARGV - own_args - 2
local held_by = {} -- id of a batch → ids of the jobs that slots hold
local unrecorded = {} -- ids of those without a record, which would name the batch
require_permission(RECORDS .. 'any', 'HMGET')
for _, slot in ipairs(read('HKEYS', WORKERS)) do
  local raw = read('LINDEX', ARGV[own_args + 1] .. slot .. ARGV[own_args + 2], -1)
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
  local k, running = own_keys + 3 * (i - 1), 0
  local hash = read('HGETALL', KEYS[k + 1])
  for _, held in ipairs({ held_by[ARGV[own_args + 2 + i]] or {}, unrecorded }) do
    for id in pairs(held) do running = running + read('SISMEMBER', KEYS[k + 2], id) end
  end
  views[i] = { hash, read('SCARD', KEYS[k + 2]) + read('SCARD', KEYS[k + 3]), running }
end
return views
