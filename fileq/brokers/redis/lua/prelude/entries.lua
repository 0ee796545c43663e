-- Jobs that come in: what enqueue, follow-ups and schedules share.
--
-- own KEYS   of each job: its record
-- own ARGV   of each job: 1 id, 2 raw, 3 queue number, 4 path, 5 signature and 6 device ('' = the job is not about a
--            version of a file), 7 flags: 'a' = enqueue even if the ledger knows the version, 'd' = a producer adds it
--            to the batch of a delivery, 8 delay in ms, 9 due time in ms, 10 unique key ('' = none), 11 the batch that
--            the job joins ('' = none), 12 the origin of a job that fileq made itself ('' = another program may have
--            made it), 13 the deadline in ms ('' = none)
--
-- KEYS, ARGV: see common.lua

-- The arguments of a job follow ARGV[a]: its id is ARGV[a + ENTRY.id].
local ENTRY = {
  id = 1, raw = 2, queue = 3, path = 4, signature = 5, device = 6, flags = 7, delay = 8, due = 9, key = 10, batch = 11,
  origin = 12, deadline = 13,
}
local ENTRY_ARGS = 13

-- The index of deadlines: id of a job → when to look at it. Its deadline is in its record.
local DEADLINES = string.sub(RECORDS, 1, -5) .. 'deadlines' -- the prefix of the records ends with `job:`
local LONGEST_LOOK = 3600000 -- as in brokers/types.py

local function index_deadline(id, deadline)
  redis.call('ZADD', DEADLINES, int_text(math.min(tonumber(deadline), now + LONGEST_LOOK)), id)
end

-- Write the deadline of a new job; '' = none.
local function keep_deadline(record, id, deadline)
  if deadline == '' then return end
  redis.call('HSET', record, 'deadline', deadline)
  index_deadline(id, deadline)
end

-- Check what add_job() needs for the deadline of the job whose arguments follow ARGV[a], before anything is written.
local function require_deadline(a)
  if ARGV[a + ENTRY.deadline] ~= '' then require_access(DEADLINES, 'zset', 'ZADD') end
end

-- Whether this record keeps a job with this origin out. One without an origin is not that of a job of fileq's own:
-- another program has used its id, and replace_record() makes room.
local function has_record(record, origin)
  if redis.call('EXISTS', record) == 0 then return false end
  local was = origin ~= '' and redis.pcall('HMGET', record, 'origin') -- a key of another type keeps every job out
  return not was or was.err ~= nil or was[1] ~= false
end

-- Begin the record of a job of fileq's own. What has had the record of this id until now is foreign from now on: the claim
-- that meets it in a queue buries it, and counts it as adopted again. The counter makes up for that.
local function replace_record(record, origin)
  local queued = tonumber(redis.call('HMGET', record, 'queued')[1] or '0')
  if queued > 0 then count('adopted', -queued) end
  redis.call('DEL', record)
  redis.call('HSET', record, 'origin', origin)
end

-- The id of the unfinished job that has this unique key, or nil. By pcall: another program may keep another type under
-- the key of the record.
local function key_holder(unique, key)
  local id = redis.call('HGET', unique, key)
  local was = id and redis.pcall('HMGET', RECORDS .. id, 'state', 'unique_key')
  return was and was[2] == key and UNFINISHED[was[1]] and id or nil
end

-- `unique` is the hash of the unique keys; nil if no job of the call has one.
local function require_entry_permissions(unique)
  require_permission(LEDGER, 'HGET', 'HSET')
  require_permission(SCHEDULED, 'ZSCORE', 'ZADD')
  for i = 1, QUEUES do require_permission(queue_key[i], 'LPUSH') end
  require_permission(RECORDS .. 'any', 'EXISTS', 'HMGET', 'HSET', 'DEL')
  if unique then
    require_permission(unique, 'HGET', 'HSET')
  end
end

-- The types of everything that any job may be written to, and the permissions.
local function require_entries(unique)
  require_entry_permissions(unique)
  require_type(LEDGER, 'hash')
  require_type(SCHEDULED, 'zset')
  for i = 1, QUEUES do require_type(queue_key[i], 'list') end
  if unique then require_type(unique, 'hash') end
end

-- Functions that a script sets if its jobs may join batches, or are members (batches.lua).
local joining

-- The state that the last end_attempt() wrote (settlements.lua). As a field of the job it would make its table grow.
local state_after

-- Enqueue the job whose arguments follow ARGV[a]; it is no duplicate. `versions` is the ledger's value of its path.
-- `awaited` is the id of a job that must have ended before this one runs, or nil. `follows` is the batch that it may join
-- although the batch is sealed, or nil.
local function add_job(record, a, versions, unique, awaited, follows)
  local id, raw, number, path, signature, device, flags, delay, due_at, key, batch, origin, deadline =
    unpack(ARGV, a + 1, a + ENTRY_ARGS)
  number, delay, due_at = tonumber(number), tonumber(delay), tonumber(due_at)
  if origin ~= '' then replace_record(record, origin) end
  keep_deadline(record, id, deadline)
  local after = versions and jobs_before(versions, id, signature)
  if awaited then after = ENDED .. in_one_line(awaited) .. (after and '\n' .. after or '') end
  if after then redis.call('HSET', record, 'after', after) end
  if path ~= '' then remember_version(path, versions, signature, device, id) end
  if key ~= '' then
    redis.call('HSET', record, 'unique_key', key)
    redis.call('HSET', unique, key, id)
  end
  -- enqueue.lua has refused a producer's job if the batch of its delivery takes none.
  local is_delivered = string.find(flags, 'd', 1, true)
  batch = joining and batch ~= '' and joining.join(batch, id, is_delivered and batch or follows)
  if batch then redis.call('HSET', record, 'batch', batch) end
  local due = math.max(due_at, now + delay)
  if due > now then
    while redis.call('ZSCORE', SCHEDULED, raw) do raw = raw .. ' ' end
    redis.call('HSET', record, 'state', 'scheduled', 'json', raw, 'queue', queue_name[number], 'created', NOW,
      'due', int_text(due), 'since', due > due_at and NOW or '0')
    redis.call('ZADD', SCHEDULED, int_text(due), raw)
  else
    redis.call('HSET', record, 'state', 'pending', 'json', raw, 'queue', queue_name[number], 'created', NOW,
      'queued', '1')
    redis.call('LPUSH', queue_key[number], raw)
  end
  count('produced')
  add_job_event('job:created', raw, nil, '', '0')
end
