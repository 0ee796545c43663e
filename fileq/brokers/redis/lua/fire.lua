#!lua
-- Fire a slot of a schedule: enqueue its job or count it as missed, and set the next slot. Nothing changes unless the
-- schedule has this revision and this next slot and is not paused. A server whose memory is full refuses the call.
--
-- own KEYS   1 schedules, 2 their states, 3 the unique keys, 4 cancels, 5 the record of the job if there is one; then
--            those of follow_ups.lua for the last job, if it is cancelled
-- own ARGV   1 name, 2 revision, 3 slot, 4 next slot, 5 the last slot that ends, 6 how many slots are missed, 7 overlap,
--            8 whether there is a job (1 or 0), then its arguments (entries.lua); then those of follow_ups.lua
-- returns    fired, skipped, passed, duplicate or stale; the id of a last job that waits too far from the front of its
--            queue: its cancellation is requested, and the caller must cancel it ('' = none)
joining = JOINING
local schedules, states, unique, cancels = KEYS[own_keys + 1], KEYS[own_keys + 2], KEYS[own_keys + 3], KEYS[own_keys + 4]
local name, revision, slot, next_slot = ARGV[own_args + 1], ARGV[own_args + 2], ARGV[own_args + 3], ARGV[own_args + 4]
local last_slot, missed = ARGV[own_args + 5], tonumber(ARGV[own_args + 6])
local overlap, has_job = ARGV[own_args + 7], ARGV[own_args + 8] == '1'
local REACH = 1000 -- as CLEAR_REACH
-- Revision, next slot, last slot, id of the last job, whether it is paused, runs, missed: a line each.
local STATE = '^([^\n]*)\n(%-?%d+)\n%-?%d+\n([^\n]*)\n([01])\n(%d+)\n(%d+)\n$'
local entry, record = own_args + 8, KEYS[own_keys + 5]
require_access(schedules, 'zset', 'ZADD')
require_access(states, 'hash', 'HGET', 'HSET')
require_entries(unique)
require_counters()
if has_job then
  require_type(record, 'hash')
  require_deadline(entry)
end
if has_job and ARGV[entry + ENTRY.batch] ~= '' then joining.require(ARGV[entry + ENTRY.batch]) end
own_keys, own_args = own_keys + (has_job and 5 or 4), entry + (has_job and ENTRY_ARGS or 0)
local extras = next_extras()

local was = redis.call('HGET', states, name)
local found, next_ms, last_id, is_paused, runs, missed_before = string.match(was or '', STATE)
if found ~= revision or next_ms ~= slot or is_paused ~= '0' then return { 'stale', '' } end

local last_record = RECORDS .. from_one_line(last_id)
local last = last_id ~= '' and read('HMGET', last_record, 'state', 'json', 'queue', 'queued', 'batch') or {}
local is_unfinished = UNFINISHED[last[1]]
local far = ''

-- Cancel the last job if it waits; if it runs, mark it, and its worker learns of it at its next renewal.
local function cancel_last()
  local state, raw, number, queued = last[1], last[2], queue_number[last[3] or ''], tonumber(last[4]) or 0
  local is_removed = false
  if state == 'pending' and number then
    local list = queue_key[number]
    local index = redis.call('LPOS', list, raw, 'RANK', -1, 'MAXLEN', REACH)
    if index then
      redis.call('LSET', list, index, '\0removed ' .. redis.sha1hex(NOW .. raw))
      redis.call('LREM', list, -1, '\0removed ' .. redis.sha1hex(NOW .. raw))
      is_removed, queued = true, queued - 1
    end
  elseif state ~= 'running' then
    is_removed = redis.call('ZREM', SCHEDULED, raw) == 1
  end
  if is_removed then
    withdraw(last_record, last[3], raw, queued)
    withdraw_member({ record = last_record, extras = extras, batch = last[5] })
    list_withdrawn()
  else
    redis.call('HSET', last_record, 'cancel', '1')
    redis.call('INCRBY', cancels, 1)
    if state ~= 'running' then far = from_one_line(last_id) end
  end
end

if overlap == 'cancel' then
  require_withdrawals()
  require_extras(extras)
  require_counting({ last[5] or false })
  require_access(SCHEDULED, 'zset', 'ZREM')
  require_queues('LPOS', 'LSET', 'LREM')
  require_access(cancels, 'string', 'INCRBY')
end

local function enqueue()
  if not has_job then return 'passed' end
  if has_record(record, ARGV[entry + ENTRY.origin]) then return 'duplicate' end
  if is_unfinished and overlap == 'skip' then return 'skipped' end
  if is_unfinished and overlap == 'cancel' then cancel_last() end
  local existing = existing_job(record, entry, unique) -- now that the last job may have ended
  if existing then return existing == ARGV[entry + ENTRY.id] and 'duplicate' or 'skipped' end
  local waits = is_unfinished and (overlap == 'queue' or overlap == 'cancel')
  add_follow_up(record, entry, unique, waits and from_one_line(last_id) or nil)
  return 'fired'
end

local result = enqueue()
if result == 'fired' or result == 'duplicate' then last_id = in_one_line(ARGV[entry + ENTRY.id]) end
if result == 'fired' then runs = int_text(runs + 1) end
if result == 'skipped' then missed = missed + 1 end
local state = { revision, next_slot, last_slot, last_id, '0', runs, int_text(missed_before + missed) }
redis.call('HSET', states, name, table.concat(state, '\n') .. '\n')
redis.call('ZADD', schedules, next_slot, name)
write_batches()
write_counters()
publish_events()
return { result, far }
