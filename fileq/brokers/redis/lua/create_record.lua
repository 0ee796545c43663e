#!lua
-- Make the record of elements that have none, as of ones that were accounted for. Asked only to look, it changes nothing.
--
-- own KEYS   of each element: its record, the list or sorted set it lies in
-- own ARGV   1 'look' or 'mend'; of each element: raw, number of the queue it lies in ('0' = another place), then the
--            record's state, queue, worker, created, started, ended, error
-- returns    1 (it lies there without a record; and has one now) or 0 for each
local STRIDE = 9
local is_mending = ARGV[own_args + 1] == 'mend'
local total = (#ARGV - own_args - 1) / STRIDE
local answers, strays = {}, {}
must_may(RECORDS .. 'any', 'EXISTS')
if is_mending then must_keep_records() end

for i = 1, total do
  local a, record, list = own_args + 1 + (i - 1) * STRIDE, KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i]
  local raw, due = ARGV[a + 1], '0'
  must_be(record, 'hash')
  local lies
  if list == SCHEDULED then
    due = read('ZSCORE', SCHEDULED, raw)
    lies = due
  else
    lies = read('LPOS', list, raw)
  end
  answers[i] = lies and not strays[record] and redis.call('EXISTS', record) == 0 and 1 or 0
  if answers[i] == 1 then strays[record] = { a = a, due = due } end
end

if is_mending then
  for record, stray in pairs(strays) do
    local a = stray.a
    redis.call('HSET', record, 'json', ARGV[a + 1], 'queued', ARGV[a + 2] ~= '0' and 1 or 0, 'state', ARGV[a + 3],
      'queue', ARGV[a + 4], 'worker', ARGV[a + 5], 'created', ARGV[a + 6], 'started', ARGV[a + 7], 'ended', ARGV[a + 8],
      'error', ARGV[a + 9], 'due', stray.due)
  end
end
return answers
