-- Claim a job for each free slot: move, heartbeat and record in one step.
--
-- Part of a turn.
-- own KEYS   of each slot: processing list, heartbeat
-- own ARGV   1 claims this process has made so far, 2 every how many claims one starts lower (0 = never); then the slots
-- returns    the paused queues' numbers; the slots that are not registered; of each claim five values: slot, queue's
--            number (0 = held before, and its record does not tell), raw, id ('' = none can be read), started at;
--            claims made so far (a job given again is none)
local made, every = tonumber(ARGV[own_args + 1]), tonumber(ARGV[own_args + 2])
local total = own_size
local paused, is_paused, gone, claims = {}, {}, {}, {}

for i = 1, QUEUES do
  must_take(queue_key[i], 'list', 'RPOPLPUSH', 'LRANGE')
  if read('SISMEMBER', PAUSED, queue_name[i]) == 1 then
    paused[#paused + 1] = i
    is_paused[i] = true
  end
end
must_may(KEYS[own_keys + 1], 'RPOPLPUSH')
must_may(KEYS[own_keys + 2], 'SET')

local function first_queue()
  if every == 0 or (made + 1) % every ~= 0 then return 1 end
  return 2 + ((made + 1) / every - 1) % (QUEUES - 1)
end

-- Nobody pushes while a script runs: the elements at a queue's end are read once, and taken in that order.
local ahead = {}
local function front(i)
  if is_paused[i] then return nil end
  local raws = ahead[i]
  if not raws then
    raws = redis.call('LRANGE', queue_key[i], text(-total), '-1')
    ahead[i] = raws
  end
  return raws[#raws]
end

local function next_job()
  local first = first_queue()
  local raw = front(first)
  if raw then return first, raw end
  for i = 1, QUEUES do
    raw = i ~= first and front(i)
    if raw then return i, raw end
  end
  return nil
end

-- What a job of ours says of itself, in one pass from its first byte; anything unusual is looked for.
local FIRST_FIELDS = '^{"id":"[^"\\%c]+","filepath":"[^"\\]*","filesize":%d+,"priority":"[^"\\]*","retries":(%d+),'
  .. '"creation_time":"[^"\\]*","trace_id":"%x*","span_id":"%x*"()'

local function started_event(slot, number, raw, id, job)
  local shown, kind, retries, rest
  if job then
    shown = string.find(id, '["\\%c]') and cjson.encode(id) or '"' .. id .. '"'
    kind, retries = type(job.type) == 'string' and cjson.encode(job.type), tonumber(job.retries)
  else
    shown = '"' .. id .. '"'
    retries, rest = string.match(raw, FIRST_FIELDS)
    if retries then
      kind = string.match(raw, '^,"type":("[^"\\]*")', rest)
    else
      retries, kind = string.match(raw, '"retries":(%d+)'), string.match(raw, '"span_id":"%x*","type":("[^"\\]*")')
    end
  end
  return '{"event":"job:started","job_id":' .. shown .. ',"type":' .. (kind or 'null') .. ',"priority":"'
    .. queue_name[number] .. '","worker_id":"' .. slot .. '","duration_ms":0,"error":"","retry_count":'
    .. (retries or '0') .. '}'
end

-- Whose element this is: one that is accounted for, or a stranger's, which is adopted.
local function mark_running(slot, number, raw, record, was)
  local queued = tonumber(was[1]) or 0
  if queued > 0 then
    redis.call('HSET', record, 'state', 'running', 'worker', slot, 'queue', queue_name[number], 'json', raw,
      'started', NOW, 'due', '0', 'queued', text(queued - 1))
    return
  end
  count('adopted')
  redis.call('HSET', record, 'state', 'running', 'worker', slot, 'queue', queue_name[number], 'json', raw,
    'started', NOW, 'due', '0', 'queued', '0', 'adopted', was[2] or 'none')
  if was[2] then
    redis.call('PERSIST', record)
  else
    redis.call('HSET', record, 'created', NOW)
  end
end

local function claim(slot, processing, heartbeat, number, raw)
  local id, job = id_in(raw)
  local was = id and read('HMGET', RECORDS .. id, 'queued', 'state') -- read before anything moves
  redis.call('RPOPLPUSH', queue_key[number], processing)
  table.remove(ahead[number])
  redis.call('SET', heartbeat, raw, 'PX', HEARTBEAT_TTL)
  if id then
    mark_running(slot, number, raw, RECORDS .. id, was)
    tell(started_event(slot, number, raw, id, job))
  else
    count('adopted')
  end
  count('consumed')
  made = made + 1
  return { slot, number, raw, id or '', NOW }
end

local function held(slot, raw)
  local id = id_in(raw)
  local was = id and read('HMGET', RECORDS .. id, 'queue', 'started') or {}
  return { slot, queue_number[was[1] or ''] or 0, raw, id or '', was[2] or '0' }
end

-- Of each slot that is registered: the element it holds, or false. And what slots take now: one may be named twice.
local holds, taken = {}, {}
local registered, lists, heartbeats = read('HMGET', WORKERS, unpack(ARGV, own_args + 3, own_args + 2 + total)), {}, {}
for i = 1, total do lists[i], heartbeats[i] = KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i] end
local is_any_held = read('EXISTS', unpack(lists)) > 0
for i = 1, total do
  if registered[i] then holds[i] = is_any_held and read('LINDEX', lists[i], -1) end
end

must_be_strings(heartbeats)

local function serve(i)
  local slot = ARGV[own_args + 2 + i]
  if holds[i] == nil then
    gone[#gone + 1] = slot
    return
  end
  local raw = holds[i] or taken[slot]
  if raw then
    claims[#claims + 1] = held(slot, raw)
    return
  end
  local number, front_raw = next_job()
  if not number then
    -- Its settlement has left this to us. Whoever asks in vain without one must not revive a lease that has run out.
    if freed[slot] then redis.call('SET', heartbeats[i], '', 'PX', HEARTBEAT_TTL) end
    return
  end
  local claimed = claim(slot, lists[i], heartbeats[i], number, front_raw)
  claims[#claims + 1], taken[slot] = claimed, claimed[3]
end

local failure
for i = 1, total do
  local ok, problem = pcall(serve, i)
  if not ok then
    failure = problem
    break
  end
end
-- What was claimed before a job that can't be claimed must reach its slots; the next call meets that job first.
if failure and #claims == 0 then error(failure) end
return { paused, gone, claims, made }
