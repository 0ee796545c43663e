-- Claim a job for each free slot: move, heartbeat and record in one step. A slot that holds a job already gets that one
-- again; a slot that is not registered gets nothing. Bytes that are too long to be decoded, and foreign bytes under the id
-- of another job, are buried here: no slot gets them.
--
-- Part of settle_and_claim.
-- own KEYS   of each slot: processing list, heartbeat
-- own ARGV   1 claims of this process so far, 2 every Nth claim starts at a lower queue (0 = none does), 3 whether the
--            slots that settle with flag n come first (1; then they are not named here), or all slots follow (0); then
--            the slots
-- returns    slots that are not registered; four values for each claim: number of the slot
--            in the order above, queue number (0 = the slot held the job already, and its record has no queue), raw,
--            and 0 or a list: id ('' = it has none), start time, 1 if an earlier job of the same file is running, 1 if
--            its batch is cancelled. 0: the id is the first field of raw, it starts now, and the rest is 0. Then claims
--            of this process so far (a job given again does not count); slot, queue number, id and error of what was
--            buried; the time of this call
local claims_made, every, are_first = tonumber(ARGV[own_args + 1]), tonumber(ARGV[own_args + 2]), ARGV[own_args + 3]
local first = are_first == '1' and claiming or {}
local slots, lists, heartbeats, total = {}, {}, {}, #first + own_size
local is_paused, gone, claims, buried = {}, {}, {}, {}
-- Claim nothing if this script has refused a settlement: the caller sends the whole call again, to another script.
if total == 0 or has_met_member then return { gone, claims, claims_made, buried, NOW } end

for i, job in ipairs(first) do slots[i], lists[i], heartbeats[i] = job.slot, job.processing, job.heartbeat end
for i = 1, own_size do
  local n = #first + i
  slots[n], lists[n], heartbeats[n] = ARGV[own_args + 3 + i], KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i]
end

local length = {}
for i = 1, QUEUES do
  require_permission(queue_key[i], 'LRANGE', 'LTRIM')
  length[i] = read('LLEN', queue_key[i]) -- this also shows that it is a list
  is_paused[i] = read('SISMEMBER', PAUSED, queue_name[i]) == 1
end
require_permission(lists[1], 'LPUSH', 'LSET')
require_permission(heartbeats[1], 'SET')

local function first_queue()
  if every == 0 or (claims_made + 1) % every ~= 0 then return 1 end
  return 2 + ((claims_made + 1) / every - 1) % (QUEUES - 1)
end

-- Read the front of each queue once: no client can push while a script runs. What was taken from it is removed from the
-- queue at once, after it has arrived elsewhere: that command can't fail, because the queue is a list.
local fronts, given = {}, {}
local function take_front(i)
  table.remove(fronts[i])
  length[i] = length[i] - 1
  given[i] = (given[i] or 0) + 1
end

local function trim_queue(i)
  if not given[i] then return end
  redis.call('LTRIM', queue_key[i], '0', int_text(-given[i] - 1))
  given[i] = nil
end

local function front(i)
  if is_paused[i] or length[i] == 0 then return nil end
  local raws = fronts[i]
  if not raws or #buried > #raws then -- after a burial, what was read may be one too few
    trim_queue(i)
    raws = redis.call('LRANGE', queue_key[i], int_text(-total), '-1')
    fronts[i] = raws
  end
  return raws[#raws]
end

local function next_front()
  local first = first_queue()
  local raw = front(first)
  if raw then return first, raw end
  for i = 1, QUEUES do
    raw = i ~= first and front(i)
    if raw then return i, raw end
  end
  return nil
end

-- Whether these bytes are not those of the job whose record `was` read: foreign_front() is true for an exact copy, too,
-- because no job of this record is in a queue.
local function foreign_front(record, raw, was)
  if not (was[4] or was[5]) then return false end
  return (was[1] or '0') == '0' or is_foreign(record, raw, was[4], was[5])
end

-- The next job for this slot: queue number, raw, id, whether that is the first field, its record. A burial takes time in
-- proportion to the bytes, so a call makes at most one. If more such bytes follow, the slots get nothing, and the caller
-- claims again at once.
local function next_job(slot)
  local number, raw = next_front()
  if not number then return nil end
  local is_long, id, is_first, was = #raw > MAX_DECODED_BYTES, nil, nil, nil
  if not is_long then
    id, is_first = read_id(raw)
    was = id and read('HMGET', RECORDS .. id, 'queued', 'state', 'after', 'batch', 'origin', 'json')
    if not was or not foreign_front(RECORDS .. id, raw, was) then return number, raw, id, is_first, was end
  end
  if #buried > 0 then return nil end
  buried[1] = bury_front(slot, number, raw, not is_long and id)
  take_front(number)
  return next_job(slot)
end

-- Update the record. A job that is not counted in `queued` was pushed by another program, and is adopted.
local function mark_running(slot, number, raw, record, was)
  local queued = tonumber(was[1]) or 0
  if was[6] and was[6] ~= raw then keep_before(record, raw, was[6], queued > 0) end
  if queued == 1 and was[2] == 'pending' then -- the usual case, in which `due` is 0 already
    redis.call('HSET', record, 'state', 'running', 'worker', slot, 'queue', queue_name[number], 'json', raw,
      'started', NOW, 'queued', '0')
    return
  end
  if queued > 0 then
    redis.call('HSET', record, 'state', 'running', 'worker', slot, 'queue', queue_name[number], 'json', raw,
      'started', NOW, 'due', '0', 'queued', int_text(queued - 1))
    return
  end
  count('adopted')
  -- Of equal bytes that run twice, the first claim knows whether there was a record.
  local adopted = was[2] == 'running' and was[6] == raw and redis.call('HGET', record, 'adopted') or was[2] or 'none'
  redis.call('HSET', record, 'state', 'running', 'worker', slot, 'queue', queue_name[number], 'json', raw,
    'started', NOW, 'due', '0', 'queued', '0', 'adopted', adopted)
  if was[2] then
    redis.call('PERSIST', record)
  else
    redis.call('HSET', record, 'created', NOW)
  end
end

local function add_claim(i, number, raw, id, is_first, started, after, batch)
  local n, blocked, cancelled = #claims, after and is_blocked(after) or 0, batch and is_batch_cancelled(batch, id) or 0
  local is_plain = is_first and started == NOW and blocked == 0 and cancelled == 0
  claims[n + 1], claims[n + 2], claims[n + 3] = i, number, raw
  claims[n + 4] = is_plain and 0 or { id or '', started, blocked, cancelled }
end

local function claim(i, slot, number, raw, id, is_first, was)
  if freed[slot] then
    redis.call('LSET', lists[i], '0', raw)
    freed[slot] = false
  else
    redis.call('LPUSH', lists[i], raw)
  end
  take_front(number)
  redis.call('SET', heartbeats[i], raw, 'PX', HEARTBEAT_TTL)
  if id then
    mark_running(slot, number, raw, RECORDS .. id, was)
    add_job_event('job:started', raw, queue_name[number], slot, '0')
  else
    count('adopted')
  end
  count('consumed')
  claims_made = claims_made + 1
  add_claim(i, number, raw, id, is_first, NOW, was and was[3], was and was[4])
end

local function add_held(i, raw)
  local id, is_first = read_id(raw)
  local was = id and read('HMGET', RECORDS .. id, 'queue', 'started', 'after', 'batch') or {}
  add_claim(i, queue_number[was[1] or ''] or 0, raw, id, is_first, was[2] or '0', was[3], was[4])
end

-- held: the raw that each registered slot holds, or false. taken: what this call gives to each slot; the caller may name
-- a slot twice.
local held, taken = {}, {}
local registered = read('HMGET', WORKERS, unpack(slots))
local settled_size = 0
for _, job in pairs(freed) do settled_size = settled_size + (job and 1 or 0) end
local is_any_held = read('EXISTS', unpack(lists)) > settled_size
local unknown = {} -- SET replaces any type; a slot that this call has freed had a heartbeat before
for i = 1, total do
  if registered[i] then held[i] = is_any_held and not freed[slots[i]] and read('LINDEX', lists[i], -1) end
  if freed[slots[i]] == nil then unknown[#unknown + 1] = heartbeats[i] end
end
require_strings(unknown)

local function serve(i)
  local slot = slots[i]
  if held[i] == nil then
    gone[#gone + 1] = slot
    return
  end
  local raw = held[i] or taken[slot]
  if raw then
    add_held(i, raw)
    return
  end
  local number, front_raw, id, is_first, was = next_job(slot)
  if not number then
    -- The settlement of this slot did not renew the heartbeat, so this does. Without a settlement, a claim that finds
    -- no job must not renew a lease that has expired.
    if freed[slot] ~= nil then redis.call('SET', heartbeats[i], '', 'PX', HEARTBEAT_TTL) end
    return
  end
  claim(i, slot, number, front_raw, id, is_first, was)
  taken[slot] = front_raw
end

-- A claim that leaves jobs behind wakes another worker: two if it leaves more than it has taken, so that a burst reaches
-- many of them soon. Only a worker that could claim hands on, or two that can't would wake each other.
local function hand_on(i)
  add_tokens(TOKENS .. queue_name[i], length[i] > total and 2 or 1)
end

local failure
for i = 1, total do
  local ok, problem = pcall(serve, i)
  if not ok then
    failure = problem
    break
  end
end
for i = 1, QUEUES do trim_queue(i) end
-- An error would hide the jobs that this call has claimed, so it is raised only if there are none. The next call meets
-- the job that can't be claimed first, and raises it.
if failure and #claims == 0 then error(failure) end
if #claims > 0 then
  for i = 1, QUEUES do
    if length[i] > 0 and not is_paused[i] then hand_on(i) end
  end
end
return { gone, claims, claims_made, buried, NOW }
