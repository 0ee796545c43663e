-- Jobs as raw bytes: their ids, how they enter a queue, how they enter the lists of ended jobs.
--
-- KEYS, ARGV: see arguments.lua

local UNFINISHED = { pending = true, scheduled = true, running = true, retrying = true } -- the states

local MAX_DECODED_BYTES = 17825792 -- as in core/job.py; parsing more would block the server

-- The id of a job, or nil; and whether it is the first field, as in every job that fileq wrote. The JSON of another
-- program is parsed. Parsed JSON is never written back. Most ids consist of letters, digits and dashes: the pattern for
-- those takes half the time.
local function read_id(raw)
  local id = string.match(raw, '^{"id":"([%w-]+)","filepath":') or string.match(raw, '^{"id":"([^"\\%c]+)","filepath":')
  if id then return id, true end
  if #raw > MAX_DECODED_BYTES then return nil end
  local ok, job = pcall(cjson.decode, raw)
  if ok and type(job) == 'table' and type(job.id) == 'string' and job.id ~= '' then return job.id end
  return nil
end

-- Push a job to a queue and update its record. `queued` counts the copies of the job in queues that are counted as
-- produced or adopted. A claim that finds it at 0 has met a job that another program pushed, and adopts it.
local function push(record, raw, number, command)
  redis.call('HSET', record, 'state', 'pending', 'json', raw, 'queue', queue_name[number], 'due', '0')
  redis.call('HINCRBY', record, 'queued', 1)
  redis.call('PERSIST', record)
  redis.call(command, queue_key[number], raw)
end

-- Push bytes without an id to a queue. No record tells them from bytes that another program pushed, so the next claim
-- adopts them again; the counter makes up for that.
local function push_without_record(raw, number, command)
  redis.call(command, queue_key[number], raw)
  count('adopted', -1)
end

local function require_ended_list(list)
  require_access(list, 'list', 'LPUSH', 'RPOP')
end

-- Push ended jobs to their list, and trim it: jobs beyond completed_max are removed with their records. One call
-- removes at most about twice as many as it pushes, so that a lowered completed_max does not block the server.
local function push_ended(list, state, raws)
  if #raws == 0 then return end
  local length
  for i = 1, #raws, 500 do
    length = redis.call('LPUSH', list, unpack(raws, i, math.min(i + 499, #raws)))
  end
  local surplus = length - COMPLETED_MAX
  if surplus <= 0 then return end
  local stale = {}
  for _, raw in ipairs(redis.call('RPOP', list, math.min(surplus, 2 * #raws + 100))) do
    local id = read_id(raw)
    if id then
      -- By pcall: another program may keep another type under this key, and it is too late to refuse.
      local was = redis.pcall('HMGET', RECORDS .. id, 'state', 'queued')
      if was[1] == state and (was[2] or '0') == '0' then stale[#stale + 1] = RECORDS .. id end
    end
  end
  for i = 1, #stale, 500 do redis.call('DEL', unpack(stale, i, math.min(i + 499, #stale))) end
end
