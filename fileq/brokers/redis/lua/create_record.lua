#!lua
-- Create the records of jobs that have none, as if they had been enqueued by fileq. In mode 'look' nothing changes:
-- look_for_unrecorded is this script, declared as one that only reads.
--
-- own KEYS   of each job: its record, the place that holds it
-- own ARGV   the windows (prelude/search.lua); 'look' or 'repair'; of each job: raw, the kind of its place ('list'
--            = a queue or the dead-letter list, 'processing' or 'scheduled'), number of its queue ('0' = it is in another
--            place), then the record's state, queue, worker, created, started, ended, error, unique key
-- returns    for each: 1 if the job is there without a record (and after a repair it has one), else 0, or far;
--            next_offsets()
local STRIDE = 11
open_windows()
local is_repair = ARGV[own_args + 1] == 'repair'
local total = (#ARGV - own_args - 1) / STRIDE
local answers, unrecorded = {}, {}
require_permission(RECORDS .. 'any', 'EXISTS')
if is_repair then require_record_permissions() end

local function is_there(kind, place, raw)
  if kind == 'scheduled' then return read('ZSCORE', place, raw) end
  if kind == 'processing' then return read('LPOS', place, raw) end
  return find(place, raw)
end

for i = 1, total do
  local a, record, place = own_args + 1 + (i - 1) * STRIDE, KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i]
  local raw, kind = ARGV[a + 1], ARGV[a + 2]
  require_type(record, 'hash')
  local found = is_there(kind, place, raw)
  answers[i] = found and not unrecorded[record] and redis.call('EXISTS', record) == 0 and 1 or 0
  if answers[i] == 1 and found == FAR then answers[i] = FAR end
  if answers[i] == 1 then unrecorded[record] = { a = a, due = kind == 'scheduled' and found or '0' } end
end

if is_repair then
  for record, found in pairs(unrecorded) do
    local raw, _, number, state, queue, worker, created, started, ended, problem, key =
      unpack(ARGV, found.a + 1, found.a + STRIDE)
    redis.call('HSET', record, 'json', raw, 'queued', number ~= '0' and 1 or 0, 'state', state, 'queue', queue, 'worker',
      worker, 'created', created, 'started', started, 'ended', ended, 'error', problem, 'due', found.due)
    if key ~= '' then redis.call('HSET', record, 'unique_key', key) end
  end
end
return { answers, next_offsets() }
