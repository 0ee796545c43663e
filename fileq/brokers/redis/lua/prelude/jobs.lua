-- Jobs as raw bytes: their ids, how they enter a queue, how they enter the lists of ended jobs.
--
-- KEYS, ARGV: see common.lua

local MAX_DECODED_BYTES = 17825792 -- as in core/job.py; the claim buries more

local MAX_PARSED_BYTES = 1048576 -- as in core/job.py; parsing more would block the server

-- The JSON object or list in these bytes; an empty one if they are neither or too long. Most bytes that are parsed are
-- parsed for their id and then for their event, so the last result is kept. It is never written back.
local last_parsed = {}
local function parse_json(raw)
  if #raw > MAX_PARSED_BYTES then return {} end
  if last_parsed.raw ~= raw then
    local ok, value = pcall(cjson.decode, raw)
    last_parsed = { raw = raw, value = ok and type(value) == 'table' and value or {} }
  end
  return last_parsed.value
end

-- Each valid sequence, by its length, is replaced by a blank, so that no two parts make a new one.
local function is_utf8(text)
  if not string.find(text, '[\128-\255]') then return true end
  local sequences = {
    '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
    '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
  }
  for _, sequence in ipairs(sequences) do text = string.gsub(text, sequence, ' ') end
  return not string.find(text, '[\128-\255]')
end

-- The id of a job, or nil; and whether it is the first field and the same in JSON, as in nearly every job that fileq
-- wrote. Most ids consist of letters, digits and dashes: the pattern for those takes half the time. Other jobs are
-- parsed; of long ones only an id at the beginning, and without one they are no job (core/job.py). An id that is not UTF-8
-- is none: no program could name its record.
local function read_id(raw)
  local id = string.match(raw, '^{"id":"([%w-]+)","filepath":')
  if id then return id, true end
  id = string.match(raw, '^{"id":"([^"\\%c]+)","filepath":')
  if id and is_utf8(id) then return id, true end
  if #raw > MAX_PARSED_BYTES then
    local text = string.match(string.sub(raw, 1, MAX_PARSED_BYTES), '^{"id":(".-"),"filepath":')
    id = text and parse_json('[' .. text .. ']')[1]
  else
    id = parse_json(raw).id
  end
  return type(id) == 'string' and id ~= '' and is_utf8(id) and id or nil
end

-- Whether these bytes are not those of the job that has this record. Bytes that another program pushed under the id of a
-- job of fileq's own, or of a member of a batch, never touch its record. Such a record has the bytes of its job, wherever
-- the job is, unless they are too long. Other records say nothing: all copies of such a job run.
local function is_foreign(record, raw, batch, origin)
  if not (batch or origin) then return false end
  local own = redis.call('HMGET', record, 'json')[1]
  return own and own ~= raw
end

-- The record of foreign bytes, as raw_id() in core/job.py, and why they don't run, as in core/own_jobs.py.
local function foreign_record(raw)
  return RECORDS .. 'raw-' .. redis.sha1hex(raw)
end

local function foreign_error(id)
  return "refused: another program enqueued these bytes under the id '" .. id .. "', which another job has"
end

-- The same for bytes in the dead-letter list: an exact copy of a job that is not dead is foreign, too.
local function is_foreign_dead(record, raw)
  local was = redis.call('HMGET', record, 'batch', 'origin', 'state')
  return (was[1] or was[2]) and (was[3] ~= 'dead' or is_foreign(record, raw, was[1], was[2]))
end

-- What core/fingerprint.py makes of that error.
local FOREIGN_FINGERPRINT = 'a62897217867'

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

-- A claim of bytes that differ from those of the record keeps what it overwrites in the field `before`: only the worker
-- finds out whether they are a job, and if not, the record must be as it was. `of` are the bytes whose claim is to be
-- undone. Bytes that are claimed meanwhile, under the same id, take over what the first ones have kept.
local BEFORE = { 'state', 'json', 'queue', 'worker', 'started', 'due', 'adopted' }

local function keep_before(record, raw, own, is_counted)
  local packed = redis.call('HGET', record, 'before')
  local before = packed and cmsgpack.unpack(packed)
  if not before or before.of ~= redis.sha1hex(own) then
    before = { fields = {}, counted = 0 }
    for i, value in ipairs(redis.call('HMGET', record, unpack(BEFORE))) do
      if value then before.fields[BEFORE[i]] = value end
    end
  end
  before.of = redis.sha1hex(raw)
  before.counted = before.counted + (is_counted and 1 or 0)
  redis.call('HSET', record, 'before', cmsgpack.pack(before))
end

-- Undo the claim of these bytes, if the record still says that they run: what it kept, or the record that it made.
local function undo_claim(record, raw)
  local was = redis.call('HMGET', record, 'state', 'json', 'adopted', 'before')
  if was[1] ~= 'running' or was[2] ~= raw then return end
  local before = was[4] and cmsgpack.unpack(was[4])
  if before and before.of == redis.sha1hex(raw) then
    redis.call('HDEL', record, 'before', unpack(BEFORE))
    for name, value in pairs(before.fields) do redis.call('HSET', record, name, value) end
    if before.counted > 0 then
      redis.call('HINCRBY', record, 'queued', int_text(before.counted))
      count('adopted', before.counted)
    elseif before.fields.state == 'completed' or before.fields.state == 'cancelled' then
      if (redis.call('HGET', record, 'queued') or '0') == '0' then redis.call('PEXPIRE', record, HISTORY_TTL) end
    end
  elseif was[3] == 'none' then
    redis.call('DEL', record)
  elseif was[3] then
    redis.call('HSET', record, 'state', was[3])
  else
    redis.call('HSET', record, 'state', 'pending')
    redis.call('HINCRBY', record, 'queued', 1)
    count('adopted')
  end
end

-- The lists of tokens that wake waiters, one list for each queue (waiting.py). A token is only a hint: a waiter that
-- finds no job waits again. A key of another type is left alone.
local TOKENS = string.sub(RECORDS, 1, -5) .. 'wake:' -- the prefix of the records ends with `job:`

local function add_tokens(tokens, wanted)
  local waiting = redis.pcall('LLEN', tokens)
  if type(waiting) ~= 'number' then return end
  for _ = waiting + 1, wanted do
    redis.pcall('LPUSH', tokens, '1')
    redis.pcall('PEXPIRE', tokens, '60000')
  end
end

-- Whether these bytes are JSON with the fields that a job needs, and none of the others has another type than in a job.
-- core/job.py refuses some of these, too.
local function looks_like_job(raw)
  if #raw > MAX_PARSED_BYTES then return true end
  local job = parse_json(raw)
  if type(job.id) ~= 'string' or (job.filepath == nil and type(job.type) ~= 'string') then return false end
  for _, name in ipairs({ 'filepath', 'priority', 'creation_time', 'trace_id', 'span_id' }) do
    if job[name] ~= nil and type(job[name]) ~= 'string' then return false end
  end
  for _, name in ipairs({ 'filesize', 'retries' }) do
    if job[name] ~= nil and (tonumber(job[name]) or -1) < 0 then return false end
  end
  return true
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
