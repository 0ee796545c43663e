-- Stands before every verb, right after its shebang. What all of them share, and nothing that only one needs.
--
-- KEYS   1 workers, 2 settled, 3 stats, 4 scheduled, 5 completed, 6 dead_letter, 7 cancelled, 8 ledger,
--        9 paused, 10 rate_limit, then one list a queue, highest first; then the verb's own, from KEYS[own_keys + 1]
-- ARGV   1 now in ms ('' = ask the server), 2 the records' prefix, 3 events channel, 4 heartbeat ttl in ms,
--        5 history ttl in ms, 6 completed_max, 7 stats retention in ms, 8 number of queues, then their names;
--        then the verb's own, from ARGV[own_args + 1]
--
-- Two kinds of keys are made here because only the server knows them: the record of an element that the script
-- itself has just met (its id is read from the raw text), and the hour's counters. Both share the prefix.
--
-- Lua does not roll back. So every script checks types and rights first, writes destinations, removes the
-- source last, and publishes last of all.

local WORKERS, SETTLED, STATS, SCHEDULED, COMPLETED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local DEAD, CANCELLED, LEDGER, PAUSED, RATE_LIMIT = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local RECORDS, CHANNEL = ARGV[2], ARGV[3]
local HEARTBEAT_TTL, HISTORY_TTL, COMPLETED_MAX, RETENTION = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7]
local QUEUES = tonumber(ARGV[8])
local ATTEMPTS_KEPT, LEDGER_DEPTH = 20, 8
local own_keys, own_args, own_size = 10 + QUEUES, 8 + QUEUES, 0 -- a turn moves them on from verb to verb

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

-- For whole numbers. What is given to a command as a number, Redis writes with all the care that fractions need.
local function text(number)
  return string.format('%d', number)
end

local NOW, HOUR = text(now), STATS .. ':' .. text(math.floor(now / 3600000))

local function must_may(key, ...)
  for i = 1, select('#', ...) do
    local command = select(i, ...)
    if not redis.acl_check_cmd(command, key) then refuse('NOPERM this user may not ' .. command .. ' ' .. key) end
  end
end

must_may(WORKERS, 'TYPE')
local function must_be(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    refuse('WRONGTYPE ' .. key .. ' is a ' .. found .. ' where fileq keeps a ' .. kind)
  end
end

-- Nothing is written before each destination was found to be of its kind, and open to every command that will touch
-- it: one that is forbidden halfway would leave half a change.
local function must_take(key, kind, ...)
  must_be(key, kind)
  must_may(key, ...)
end

-- What Redis says of a key that is not as it should be does not tell which.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    must_may(key, command)
    refuse('WRONGTYPE ' .. key .. ' is a ' .. redis.call('TYPE', key).ok .. ' where fileq keeps something else')
  end
  return reply
end

-- One record stands for all: they share a prefix. Their types show when they are read, which comes before writing.
local function must_keep_records()
  must_may(RECORDS .. 'any', 'HMGET', 'HSET', 'HINCRBY', 'HDEL', 'PEXPIRE', 'PERSIST', 'DEL')
end

-- Many keys at the price of one: only where nothing could be read is there a reason to ask for the type.
local function must_be_strings(keys)
  if #keys == 0 then return end
  must_may(keys[1], 'MGET')
  for i, value in ipairs(redis.call('MGET', unpack(keys))) do
    if not value then must_be(keys[i], 'string') end
  end
end

-- Counters are gathered and written once a batch.
local counts = {}
local function count(name, by)
  counts[name] = (counts[name] or 0) + (by or 1)
end

local function must_count()
  must_take(STATS, 'hash', 'HINCRBY')
  must_take(HOUR, 'hash', 'HINCRBY', 'PEXPIRE')
end

local function write_counts()
  if next(counts) == nil then return end
  for name, by in pairs(counts) do
    if by ~= 0 then
      redis.call('HINCRBY', STATS, name, by)
      redis.call('HINCRBY', HOUR, name, by)
    end
  end
  redis.call('PEXPIRE', HOUR, RETENTION)
end

local events = {}
local function tell(event)
  if event ~= '' then events[#events + 1] = event end
end

local function publish()
  for _, event in ipairs(events) do redis.pcall('PUBLISH', CHANNEL, event) end
end

-- The id of an element, or nil. It stands first in every job of ours; another's text is parsed, and then the parsed
-- job comes second. Nothing parsed here is ever written back.
local function id_in(raw)
  local id = string.match(raw, '^{"id":"([^"\\%c]+)","filepath":')
  if id then return id end
  local ok, job = pcall(cjson.decode, raw)
  if ok and type(job) == 'table' and type(job.id) == 'string' and job.id ~= '' then return job.id, job end
  return nil
end

-- An element enters its queue, and its record says so. `queued` counts the elements in queues that are accounted
-- for: a claim that finds it at zero has met a stranger's element, and adopts it.
local function push(record, raw, number, command)
  redis.call('HSET', record, 'state', 'pending', 'json', raw, 'queue', queue_name[number], 'due', '0')
  redis.call('HINCRBY', record, 'queued', 1)
  redis.call('PERSIST', record)
  redis.call(command, queue_key[number], raw)
end

-- Bytes without an id enter a queue again: nobody can tell them from a stranger's, so they leave the books here
-- and the next claim adopts them anew.
local function disown(raw, number, command)
  redis.call(command, queue_key[number], raw)
  count('adopted', -1)
end

local function must_list_ended(list)
  must_take(list, 'list', 'LPUSH', 'LLEN', 'RPOP')
end

-- Listed, and what falls off the end takes its record with it. At most twice what came is dropped, so that a
-- lowered completed_max costs no single call too much.
local function list_ended(list, state, raws)
  if #raws == 0 then return end
  for i = 1, #raws, 500 do
    redis.call('LPUSH', list, unpack(raws, i, math.min(i + 499, #raws)))
  end
  local surplus = redis.call('LLEN', list) - COMPLETED_MAX
  if surplus <= 0 then return end
  local stale = {}
  for _, raw in ipairs(redis.call('RPOP', list, math.min(surplus, 2 * #raws + 100))) do
    local id = id_in(raw)
    if id then
      -- By pcall: what a stranger keeps under that name is no record, and it is too late to refuse.
      local was = redis.pcall('HMGET', RECORDS .. id, 'state', 'queued')
      if was[1] == state and (was[2] or '0') == '0' then stale[#stale + 1] = RECORDS .. id end
    end
  end
  for i = 1, #stale, 500 do redis.call('DEL', unpack(stale, i, math.min(i + 499, #stale))) end
end

-- The ledger's value: a line "signature id" a version, newest first; then "on device" if it is known where the file
-- was seen, or "missing since device" once a producer has missed it there.
local function knows(versions, signature)
  return versions and string.find('\n' .. versions, '\n' .. signature .. ' ', 1, true) ~= nil
end

local function learn(path, signature, device, id)
  local one_line = string.gsub(id, '[%%\n]', { ['%'] = '%25', ['\n'] = '%0A' })
  local lines, n, seen_on = { signature .. ' ' .. one_line }, 1, device
  for line in string.gmatch(redis.call('HGET', LEDGER, path) or '', '[^\n]+') do
    local known = string.match(line, '^%S+')
    if known == 'on' or known == 'missing' then
      seen_on = device ~= '' and device or string.match(line, '%S*$')
    elseif n < LEDGER_DEPTH and known ~= signature then
      n = n + 1
      lines[n] = line
    end
  end
  if seen_on ~= '' then lines[n + 1] = 'on ' .. seen_on end
  redis.call('HSET', LEDGER, path, table.concat(lines, '\n') .. '\n')
end

-- Settlements, for the verbs that end a claim. Keys of each: processing list, heartbeat, record. Arguments of each:
-- 1 slot, 2 token, 3 raw, 4 id, 5 queue's number, 6 flags (d = its worker died, r = refused, nobody tried it,
-- s = superseded, u = no id anybody can read, n = its slot asks for the next job in the same turn, and the claim sees to
-- the heartbeat, x = more follow),
-- 7 result, 8 the attempt's JSON from its worker on, 9 event. After an x: 10 raw as it travels on, 11 error, 12 kind of
-- error, 13 delay in ms, 14 id of the record that the claim made for bytes that turned out to be no job ('' = none),
-- 15 path, 16 signature and 17 device of the version its handler leaves behind ('' = none)
local SETTLEMENT_KEYS, SETTLEMENT_ARGS, MORE_ARGS = 3, 9, 8

-- The next settlement; own_keys and own_args move on.
local function next_settlement()
  local k, a = own_keys, own_args
  own_keys, own_args = k + SETTLEMENT_KEYS, a + SETTLEMENT_ARGS
  local raw, flags = ARGV[a + 3], ARGV[a + 6]
  local job = {
    processing = KEYS[k + 1], heartbeat = KEYS[k + 2], record = KEYS[k + 3], slot = ARGV[a + 1], token = ARGV[a + 2],
    raw = raw, onward = raw, id = ARGV[a + 4], queue = tonumber(ARGV[a + 5]), result = ARGV[a + 7],
    attempt = ARGV[a + 8], event = ARGV[a + 9], asks = string.find(flags, 'n', 1, true),
    error = '', kind = '', shadow = '', path = '',
  }
  if not string.find(flags, 'x', 1, true) then return job end
  own_args = own_args + MORE_ARGS
  job.died, job.superseded = string.find(flags, 'd', 1, true), string.find(flags, 's', 1, true)
  job.unreadable, job.refused = string.find(flags, 'u', 1, true), string.find(flags, 'r', 1, true)
  job.onward, job.error, job.kind, job.delay = ARGV[a + 10], ARGV[a + 11], ARGV[a + 12], tonumber(ARGV[a + 13])
  job.shadow, job.path, job.signature, job.device = ARGV[a + 14], ARGV[a + 15], ARGV[a + 16], ARGV[a + 17]
  return job
end

local function read_record(job)
  return read('HMGET', job.record, 'started', 'attempts', 'queued', 'created', 'worker', 'state')
end

-- All that moving it will ask, before anything is written.
local function look_up(job)
  job.was = read_record(job)
  if job.shadow ~= '' then job.shadow_was = read('HMGET', RECORDS .. job.shadow, 'worker', 'adopted') end
end

-- The record's part of a settlement: the attempt joins the history, the state changes. Says whether copies wait.
local closed = {}
local function close_attempt(job, state, ...)
  local was = closed[job.record] and read_record(job) or job.was -- two copies of a job may end in one batch
  closed[job.record] = true
  local count_before = tonumber(was[2]) or 0
  local n = text(count_before + 1)
  if not was[4] then redis.call('HSET', job.record, 'created', NOW) end
  -- What the claim wrote is there already, unless a copy of the job was claimed or settled after it.
  if was[5] ~= job.slot or was[6] ~= 'running' or job.onward ~= job.raw then
    redis.call('HSET', job.record, 'json', job.onward, 'queue', queue_name[job.queue], 'worker', job.slot)
  end
  redis.call('HSET', job.record, 'state', state, 'error', job.error, 'attempts', n, 'attempt:' .. n,
    '{"started_ms":' .. (was[1] or '0') .. ',"ended_ms":' .. NOW .. ',' .. job.attempt .. '}', ...)
  if count_before >= ATTEMPTS_KEPT then
    redis.call('HDEL', job.record, 'attempt:' .. text(count_before + 1 - ATTEMPTS_KEPT))
  end
  return (was[3] or '0') ~= '0'
end

local function expire_record(job, has_copies)
  if has_copies then
    redis.call('PERSIST', job.record)
  else
    redis.call('PEXPIRE', job.record, HISTORY_TTL)
  end
end

local function blame(job)
  if job.died then
    count('recovered')
  elseif not job.refused then
    count('failed')
  end
  if job.kind ~= '' then count('error:' .. job.kind) end
end

local function to_scheduled(job)
  local due = now + job.delay
  -- Another copy of the same bytes may be waiting: a blank keeps the two apart.
  while redis.call('ZSCORE', SCHEDULED, job.onward) do job.onward = job.onward .. ' ' end
  close_attempt(job, 'retrying', 'due', text(due))
  redis.call('PERSIST', job.record)
  redis.call('ZADD', SCHEDULED, text(due), job.onward)
  if not job.died then count('retried') end
  blame(job)
end

-- The claim made a record for bytes that turned out to be no job: unmake it, or give it back to whose it was.
local function unmake(job)
  local shadow, was = RECORDS .. job.shadow, job.shadow_was
  if was[1] ~= job.slot then return end
  if was[2] == 'none' then
    redis.call('DEL', shadow)
  elseif was[2] then
    redis.call('HSET', shadow, 'state', was[2])
  else
    redis.call('HSET', shadow, 'state', 'pending')
    redis.call('HINCRBY', shadow, 'queued', 1)
    count('adopted')
  end
end

local function to_dead(job)
  if job.shadow ~= '' then unmake(job) end
  close_attempt(job, 'dead', 'ended', NOW)
  redis.call('PERSIST', job.record)
  redis.call('LPUSH', DEAD, job.onward)
  count('dead')
  blame(job)
end

local function to_front(job)
  if job.unreadable then
    disown(job.onward, job.queue, 'RPUSH')
  else
    close_attempt(job, 'pending')
    push(job.record, job.onward, job.queue, 'RPUSH')
  end
  count(job.died and 'recovered' or 'released')
end

-- A call that the server executes late, when its slot has settled later claims: the slot may hold the same bytes again,
-- and it is not this claim's outcome that they are waiting for.
local function is_older(token, last)
  return tonumber(token) < (tonumber(last or '') or 0)
end

-- The slots whose claim ended in this very call: they are free, and the claim may give them the next job.
local freed = {}

-- Every claim of the batch that its slot still holds is moved by `move`, all of them are rounded off by `finish`; then
-- the sources are emptied. One answer each: done, done already (a repeat), fenced (the slot lost it; nothing changed).
local function settle(move, finish)
  must_take(SETTLED, 'hash', 'HMGET', 'HSET')
  local answers, held, settled_here, jobs, slots = {}, {}, {}, {}, {}
  for i = 1, own_size do
    jobs[i] = next_settlement()
    slots[i] = jobs[i].slot
  end
  if own_size == 0 then return answers end
  local settled_last, fenced = redis.call('HMGET', SETTLED, unpack(slots)), 0
  for i, job in ipairs(jobs) do
    local last = settled_here[job.slot] or settled_last[i]
    if last == job.token then
      answers[i] = 'done already'
    elseif settled_here[job.slot] or is_older(job.token, last) or not read('LPOS', job.processing, job.raw) then
      answers[i] = 'fenced'
      fenced = fenced + 1
    else
      look_up(job)
      answers[i] = 'done'
      settled_here[job.slot] = job.token
      held[#held + 1] = job
    end
  end
  if #held > 0 then
    must_may(held[1].processing, 'LREM')
    must_may(held[1].heartbeat, 'SET')
  end
  local heartbeats = {}
  for _, job in ipairs(held) do
    if not job.asks then heartbeats[#heartbeats + 1] = job.heartbeat end
  end
  must_be_strings(heartbeats)
  if fenced > 0 then count('fenced', fenced) end -- after the last check: one that is refused changes nothing
  if #held == 0 then return answers end
  for _, job in ipairs(held) do
    move(job)
    tell(job.event)
  end
  if finish then finish() end
  local settled_now = {}
  for i, job in ipairs(held) do
    settled_now[2 * i - 1], settled_now[2 * i] = job.slot, job.token
    if job.asks then
      freed[job.slot] = true
    else
      redis.call('SET', job.heartbeat, '', 'PX', HEARTBEAT_TTL)
    end
    redis.call('LREM', job.processing, '1', job.raw)
  end
  redis.call('HSET', SETTLED, unpack(settled_now))
  return answers
end
