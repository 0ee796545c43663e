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
  require_type(record, 'hash')
  local found = is_there(ARGV[a + 2], place, ARGV[a + 1])
  answers[i] = found and not unrecorded[record] and redis.call('EXISTS', record) == 0 and 1 or 0
  if answers[i] == 1 and found == FAR then answers[i] = FAR end
  if answers[i] == 1 then unrecorded[record] = { a = a, due = ARGV[a + 2] == 'scheduled' and found or '0' } end
end

if is_repair then
  for record, found in pairs(unrecorded) do
    local a = found.a
    redis.call('HSET', record, 'json', ARGV[a + 1], 'queued', ARGV[a + 3] ~= '0' and 1 or 0, 'state', ARGV[a + 4],
      'queue', ARGV[a + 5], 'worker', ARGV[a + 6], 'created', ARGV[a + 7], 'started', ARGV[a + 8], 'ended', ARGV[a + 9],
      'error', ARGV[a + 10], 'due', found.due)
    if ARGV[a + 11] ~= '' then redis.call('HSET', record, 'unique_key', ARGV[a + 11]) end
  end
end
return { answers, next_offsets() }
