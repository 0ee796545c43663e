#!lua
-- Enqueue jobs: record, ledger, permit and queue of each in one step. A server whose memory is full refuses the call.
--
-- own KEYS   the record of each job
-- own ARGV   1 permits of one window (0 = none needed); of each job: id, raw, queue number, path, signature and device
--            ('' = the job is not about a version of a file), 'a' = enqueue even if the ledger knows the version,
--            delay in ms, due time in ms
-- returns    permits taken; ms until the window ends (0 = nothing was throttled); for each job: enqueued, known,
--            duplicate or throttled
local STRIDE, WINDOW = 9, 1000
local limit = tonumber(ARGV[own_args + 1])
local total = (#ARGV - own_args - 1) / STRIDE
local taken, throttled, results = 0, false, {}
if total <= FEW_EVENTS then subscribed = true end

require_counters()
require_permission(LEDGER, 'HGET', 'HSET')
require_permission(SCHEDULED, 'ZSCORE', 'ZADD')
if limit > 0 then require_access(RATE_LIMIT, 'string', 'GET', 'SET', 'INCRBY', 'PTTL', 'PEXPIRE') end
for i = 1, QUEUES do require_permission(queue_key[i], 'LPUSH') end
require_permission(RECORDS .. 'any', 'EXISTS', 'HSET')

-- The types of all keys that this call may write. A record is written only where none exists.
local kind_of, is_recorded = {}, {}
for i = 1, total do
  local a, record = own_args + 1 + (i - 1) * STRIDE, KEYS[own_keys + i]
  is_recorded[record] = redis.call('EXISTS', record) == 1
  if is_recorded[record] then require_type(record, 'hash') end
  if ARGV[a + 4] ~= '' then kind_of[LEDGER] = 'hash' end
  if ARGV[a + 8] ~= '0' or ARGV[a + 9] ~= '0' then kind_of[SCHEDULED] = 'zset' end
  kind_of[queue_key[tonumber(ARGV[a + 3])]] = 'list'
end
for key, kind in pairs(kind_of) do require_type(key, kind) end
local used = limit > 0 and tonumber(redis.call('GET', RATE_LIMIT) or '0') or 0
-- No window lasts longer than this: the server's clock has stepped back, so the window has ended.
if used > 0 and redis.call('PTTL', RATE_LIMIT) > WINDOW then used = 0 end

for i = 1, total do
  local a = own_args + 1 + (i - 1) * STRIDE
  local id, raw, number, path, signature = ARGV[a + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), ARGV[a + 4], ARGV[a + 5]
  local is_version = path ~= '' and ARGV[a + 7] ~= 'a'
  local record = KEYS[own_keys + i]
  local versions = path ~= '' and redis.call('HGET', LEDGER, path)
  if is_recorded[record] then
    results[i] = 'duplicate'
  elseif is_version and is_known(versions, signature) then
    results[i] = 'known'
  elseif is_version and limit > 0 and used + taken >= limit then
    results[i] = 'throttled'
    throttled = true
  else
    results[i], is_recorded[record] = 'enqueued', true
    if is_version and limit > 0 then taken = taken + 1 end
    local after = versions and jobs_before(versions, id)
    if after then redis.call('HSET', record, 'after', after) end
    if path ~= '' then remember_version(path, versions, signature, ARGV[a + 6], id) end
    local due = math.max(tonumber(ARGV[a + 9]), now + tonumber(ARGV[a + 8]))
    if due > now then
      while redis.call('ZSCORE', SCHEDULED, raw) do raw = raw .. ' ' end
      redis.call('HSET', record, 'state', 'scheduled', 'json', raw, 'queue', queue_name[number], 'created', NOW,
        'due', int_text(due), 'since', due > tonumber(ARGV[a + 9]) and NOW or '0')
      redis.call('ZADD', SCHEDULED, int_text(due), raw)
    else
      redis.call('HSET', record, 'state', 'pending', 'json', raw, 'queue', queue_name[number], 'created', NOW,
        'queued', '1')
      redis.call('LPUSH', queue_key[number], raw)
    end
    count('produced')
    add_job_event('job:created', raw, nil, '', '0')
  end
end

if taken > 0 then
  if used == 0 then
    redis.call('SET', RATE_LIMIT, taken, 'PX', WINDOW)
  else
    redis.call('INCRBY', RATE_LIMIT, taken)
  end
end
local wait = 0
if throttled then
  wait = redis.call('PTTL', RATE_LIMIT)
  if wait == -1 then -- a program that died before it set the expiry would throttle for ever
    redis.call('PEXPIRE', RATE_LIMIT, WINDOW)
    wait = WINDOW
  end
  wait = math.max(1, wait)
end
write_counters()
publish_events()
return { taken, wait, results }
