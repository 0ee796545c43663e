-- The prelude stands before every script, right after its shebang. This file is what scripts begin and end with: the keys
-- and arguments that all share, the time, the checks before the first write, the counters.
--
-- KEYS   1 workers, 2 settled, 3 stats, 4 scheduled, 5 completed, 6 dead_letter, 7 cancelled, 8 ledger, 9 paused,
--        10 rate_limit, then the list of each queue, highest first; then the script's own, from KEYS[own_keys + 1]
-- ARGV   1 now in ms ('' = the server's time), 2 prefix of the records, 3 events channel, 4 heartbeat ttl in ms,
--        5 history ttl in ms, 6 completed_max, 7 retention of the hourly counters in ms, 8 number of queues, then
--        their names; then the script's own, from ARGV[own_args + 1]
--
-- Scripts make three kinds of keys themselves, because only the server knows them: the record of a job that the script
-- has just read (its id is in the raw, in `after` of such a record, in the unique keys or in the state of a schedule),
-- the batch of such a job and its parents (batches.lua), and the counters of the hour. All share the prefix.
--
-- Lua does not roll back. So every script checks types and permissions first, writes destinations, removes the source
-- last, and publishes last of all.

local WORKERS, SETTLED, STATS, SCHEDULED, COMPLETED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local DEAD, CANCELLED, LEDGER, PAUSED, RATE_LIMIT = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local RECORDS, CHANNEL = ARGV[2], ARGV[3]
local HEARTBEAT_TTL, HISTORY_TTL, COMPLETED_MAX, RETENTION = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7]
local QUEUES = tonumber(ARGV[8])
local own_keys, own_args, own_size = 10 + QUEUES, 8 + QUEUES, 0 -- settle_and_claim moves them on from part to part

local queue_key, queue_name, queue_number = {}, {}, {}
for i = 1, QUEUES do
  queue_key[i], queue_name[i], queue_number[ARGV[8 + i]] = KEYS[10 + i], ARGV[8 + i], i
end

local function refuse(message)
  error({ err = message })
end

local now
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1])
else
  if not redis.acl_check_cmd('TIME') then refuse('NOPERM this user may not TIME') end
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The states of the jobs in SCHEDULED, and of all that have not ended, as in core/job.py.
local DELAYED = { scheduled = true, retrying = true, deferred = true }

local UNFINISHED = { pending = true, scheduled = true, retrying = true, deferred = true, running = true }

-- A whole number as text. Redis converts a number argument as a fraction, which is slower.
local function int_text(number)
  return string.format('%d', number)
end

local NOW, HOUR = int_text(now), STATS .. ':' .. int_text(math.floor(now / 3600000))

-- Checks before the first write: types of keys and permissions of the user. A command that is forbidden halfway would
-- leave half a change.
local function require_permission(key, ...)
  for i = 1, select('#', ...) do
    local command = select(i, ...)
    if not redis.acl_check_cmd(command, key) then refuse('NOPERM this user may not ' .. command .. ' ' .. key) end
  end
end

local function require_type(key, kind)
  require_permission(key, 'TYPE')
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    refuse('WRONGTYPE ' .. key .. ' is a ' .. found .. ' where fileq keeps a ' .. kind)
  end
end

-- For a key that will be written: its type, and the permission for every command that will be run on it.
local function require_access(key, kind, ...)
  require_type(key, kind)
  require_permission(key, ...)
end

-- A read whose error names the key; the error of Redis does not.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    require_permission(key, command)
    refuse('WRONGTYPE ' .. key .. ' is a ' .. redis.call('TYPE', key).ok .. ' where fileq keeps something else')
  end
  return reply
end

-- One check for all records: they share a prefix. Their types are checked when they are read, before any write.
local function require_record_permissions()
  require_permission(RECORDS .. 'any', 'HMGET', 'HSET', 'HINCRBY', 'HDEL', 'PEXPIRE', 'PERSIST', 'DEL')
end

-- Many keys for the price of one read: TYPE is needed only where MGET found nothing.
local function require_strings(keys)
  if #keys == 0 then return end
  require_permission(keys[1], 'MGET')
  for i, value in ipairs(redis.call('MGET', unpack(keys))) do
    if not value then require_type(keys[i], 'string') end
  end
end

local function require_queues(...)
  for i = 1, QUEUES do require_access(queue_key[i], 'list', ...) end
end

-- Counters: collected while a script runs, written once at its end.
local counts = {}
local function count(name, by)
  counts[name] = (counts[name] or 0) + (by or 1)
end

local function require_counters()
  require_access(STATS, 'hash', 'HINCRBY')
  require_access(HOUR, 'hash', 'HINCRBY', 'PEXPIRE')
end

local function write_counters()
  if next(counts) == nil then return end
  for name, by in pairs(counts) do
    if by ~= 0 then
      redis.call('HINCRBY', STATS, name, by)
      redis.call('HINCRBY', HOUR, name, by)
    end
  end
  redis.call('PEXPIRE', HOUR, RETENTION)
end
