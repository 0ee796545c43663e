#!lua
-- Create the records of jobs that have none, as if they had been enqueued by fileq. In mode 'look' nothing changes.
--
-- own KEYS   of each job: its record, the list or sorted set that holds it
-- own ARGV   1 'look' or 'repair'; of each job: raw, number of its queue ('0' = it is in another place), then the
--            record's state, queue, worker, created, started, ended, error; hint (see prelude/search.lua)
-- returns    for each: 1 if the job is there without a record (and after a repair it has one), else 0, or far;
--            fewer answers than jobs if the search took long
local STRIDE = 10
local is_repair = ARGV[own_args + 1] == 'repair'
local total = (#ARGV - own_args - 1) / STRIDE
local answers, unrecorded = {}, {}
require_permission(RECORDS .. 'any', 'EXISTS')
if is_repair then require_record_permissions() end

for i = 1, total do
  if has_searched_enough() then break end
  local a, record, list = own_args + 1 + (i - 1) * STRIDE, KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i]
  local raw, due = ARGV[a + 1], '0'
  require_type(record, 'hash')
  local is_there
  if list == SCHEDULED then
    due = read('ZSCORE', SCHEDULED, raw)
    is_there = due
  else
    is_there = find(list, raw, 1, ARGV[a + 10])
  end
  answers[i] = is_there and not unrecorded[record] and redis.call('EXISTS', record) == 0 and 1 or 0
  if answers[i] == 1 and is_there == FAR then answers[i] = FAR end
  if answers[i] == 1 then unrecorded[record] = { a = a, due = due } end
end

if is_repair then
  for record, found in pairs(unrecorded) do
    local a = found.a
    redis.call('HSET', record, 'json', ARGV[a + 1], 'queued', ARGV[a + 2] ~= '0' and 1 or 0, 'state', ARGV[a + 3],
      'queue', ARGV[a + 4], 'worker', ARGV[a + 5], 'created', ARGV[a + 6], 'started', ARGV[a + 7], 'ended', ARGV[a + 8],
      'error', ARGV[a + 9], 'due', found.due)
  end
end
return answers
