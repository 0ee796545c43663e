#!lua flags=allow-oom
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
local function int_text(number)
  return string.format('%d', number)
end
local NOW, HOUR = int_text(now), STATS .. ':' .. int_text(math.floor(now / 3600000))
local function require_permission(key, ...)
  for i = 1, select('#', ...) do
    local command = select(i, ...)
    if not redis.acl_check_cmd(command, key) then refuse('NOPERM this user may not ' .. command .. ' ' .. key) end
  end
end
require_permission(WORKERS, 'TYPE')
local function require_type(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    refuse('WRONGTYPE ' .. key .. ' is a ' .. found .. ' where fileq keeps a ' .. kind)
  end
end
local function require_access(key, kind, ...)
  require_type(key, kind)
  require_permission(key, ...)
end
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    require_permission(key, command)
    refuse('WRONGTYPE ' .. key .. ' is a ' .. redis.call('TYPE', key).ok .. ' where fileq keeps something else')
  end
  return reply
end
local function require_record_permissions()
  require_permission(RECORDS .. 'any', 'HMGET', 'HSET', 'HINCRBY', 'HDEL', 'PEXPIRE', 'PERSIST', 'DEL')
end
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
local function find_subscribers()
  if string.find(CHANNEL, '{', 1, true) then return true end
  local may = redis.acl_check_cmd
  if not (may('PUBSUB', 'NUMSUB', CHANNEL) and may('PUBSUB', 'NUMPAT') and may('INFO', 'replication')) then return true end
  if redis.call('PUBSUB', 'NUMSUB', CHANNEL)[2] > 0 or redis.call('PUBSUB', 'NUMPAT') > 0 then return true end
  return not string.find(redis.call('INFO', 'replication'), 'repl_backlog_active:0', 1, true)
end
local FEW_EVENTS = 2 -- to publish so few costs less than to look for subscribers
local subscribed
local function has_subscribers()
  if subscribed == nil then subscribed = find_subscribers() end
  return subscribed
end
local events = {}
local function add_event(event)
  if event ~= '' and has_subscribers() then events[#events + 1] = string.sub(event, 1, -3) .. NOW .. '}' end
end
local function json_text(text)
  if not string.find(text, '[%z\1-\31"\\]') then return '"' .. text .. '"' end
  local short = { ['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't', ['"'] = '"', ['\\'] = '\\' }
  local escaped = string.gsub(text, '[%z\1-\31"\\]', function(character)
    return '\\' .. (short[character] or string.format('u%04x', string.byte(character)))
  end)
  return '"' .. escaped .. '"'
end
local function event_fields(raw)
  local id, path, priority, retries, rest = string.match(
    raw,
    '^{"id":("[^"\\%c]+"),"filepath":("[^"\\]*"),"filesize":%d+,"priority":("[^"\\]*"),"retries":(%d+),'
      .. '"creation_time":"[^"\\]*","trace_id":"%x*","span_id":"%x*"()'
  )
  local kind = id and string.match(raw, '^,"type":("[^"\\]*")', rest)
  if id and (kind or not string.find(raw, '"type":', rest, true)) then
    return id, kind or 'null', priority, retries, path
  end
  local ok, job = pcall(cjson.decode, raw)
  if not ok or type(job) ~= 'table' then job = {} end
  local function text(name, otherwise)
    return type(job[name]) == 'string' and json_text(job[name]) or otherwise
  end
  local retried = int_text(tonumber(job.retries) or 0)
  return text('id', '""'), text('type', 'null'), text('priority', '""'), retried, text('filepath', '""')
end
local function add_job_event(name, raw, queue, slot, duration)
  if not has_subscribers() then return end
  local id, kind, priority, retries, path = event_fields(raw)
  events[#events + 1] = '{"event":"' .. name .. '","job_id":' .. id .. ',"type":' .. kind .. ',"priority":'
    .. (queue and json_text(queue) or priority) .. ',"worker_id":' .. json_text(slot) .. ',"duration_ms":' .. duration
    .. ',"error":"","retry_count":' .. retries .. ',"filepath":' .. path .. ',"at":' .. NOW .. '}'
end
local function publish_events()
  for _, event in ipairs(events) do redis.pcall('PUBLISH', CHANNEL, event) end
end
local UNFINISHED = { pending = true, scheduled = true, running = true, retrying = true } -- the states
local MAX_DECODED_BYTES = 17825792 -- as in core/job.py; parsing more would block the server
local function read_id(raw)
  local id = string.match(raw, '^{"id":"([^"\\%c]+)","filepath":')
  if id then return id end
  if #raw > MAX_DECODED_BYTES then return nil end
  local ok, job = pcall(cjson.decode, raw)
  if ok and type(job) == 'table' and type(job.id) == 'string' and job.id ~= '' then return job.id end
  return nil
end
local function push(record, raw, number, command)
  redis.call('HSET', record, 'state', 'pending', 'json', raw, 'queue', queue_name[number], 'due', '0')
  redis.call('HINCRBY', record, 'queued', 1)
  redis.call('PERSIST', record)
  redis.call(command, queue_key[number], raw)
end
local function push_without_record(raw, number, command)
  redis.call(command, queue_key[number], raw)
  count('adopted', -1)
end
local function require_ended_list(list)
  require_access(list, 'list', 'LPUSH', 'RPOP')
end
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
      local was = redis.pcall('HMGET', RECORDS .. id, 'state', 'queued')
      if was[1] == state and (was[2] or '0') == '0' then stale[#stale + 1] = RECORDS .. id end
    end
  end
  for i = 1, #stale, 500 do redis.call('DEL', unpack(stale, i, math.min(i + 499, #stale))) end
end
local LEDGER_DEPTH, EARLIER_JOBS_MAX = 8, 16
local function split_signature(signature)
  local before = string.match(signature, '^(.*)%-c[0-9a-f]+$') or signature
  local short = string.match(before, '^(.*)%-i[0-9]+$') or before
  return short, string.sub(signature, #short + 2)
end
local function marks_agree(one, other)
  local a, b = string.match(one, 'c([0-9a-f]+)$'), string.match(other, 'c([0-9a-f]+)$')
  if not (a and b) then a, b = string.match(one, '^i([0-9]+)'), string.match(other, '^i([0-9]+)') end
  return not (a and b) or a == b
end
local function marks_of(versions)
  local marks = {}
  local line = string.match('\n' .. versions, '\non =([^\n]*)\n')
  for mark in string.gmatch(line and line .. ',' or '', '([^,]*),') do marks[#marks + 1] = mark end
  return marks
end
local function in_one_line(id)
  return (string.gsub(id, '[%%\n]', { ['%'] = '%25', ['\n'] = '%0A' }))
end
local function from_one_line(line)
  return (string.gsub(string.gsub(line, '%%0A', '\n'), '%%25', '%%'))
end
local function field_of(line, name)
  return redis.pcall('HMGET', RECORDS .. from_one_line(line), name)[1]
end
local ENDED = '%ended '
local function is_blocked(after)
  for line in string.gmatch(after or '', '[^\n]+') do
    local is_awaited = string.sub(line, 1, #ENDED) == ENDED
    local state = field_of(is_awaited and string.sub(line, #ENDED + 1) or line, 'state')
    if state == 'running' or is_awaited and UNFINISHED[state] then return 1 end
  end
  return 0
end
local function remember_version(path, versions, signature, device, id)
  local short, mark = split_signature(signature)
  local lines, marks, seen_on = { short .. ' ' .. in_one_line(id) }, { mark }, device
  local old_marks, old = marks_of(versions or ''), 0
  for line in string.gmatch(versions or '', '[^\n]+') do
    local known = string.match(line, '^%S+')
    if known == 'on' or known == 'missing' then
      seen_on = device ~= '' and device or string.match(line, '%S*$')
    else
      old = old + 1
      local old_mark = old_marks[old] or ''
      if #lines < LEDGER_DEPTH and not (known == short and marks_agree(old_mark, mark)) then
        lines[#lines + 1], marks[#marks + 1] = line, old_mark
      end
    end
  end
  local marked = string.gsub(table.concat(marks, ','), ',+$', '')
  if marked ~= '' then lines[#lines + 1] = 'on =' .. marked end
  if seen_on ~= '' or marked ~= '' then lines[#lines + 1] = 'on ' .. seen_on end
  redis.call('HSET', LEDGER, path, table.concat(lines, '\n') .. '\n')
end
local SETTLEMENT_KEYS, SHORT_ARGS, LONG_ARGS = 3, 7, 11
local ATTEMPTS_KEPT = 20
local claiming, is_claiming = {}, {}
local read_hook, require_hook, keep_hook
local function next_settlement()
  local k, a = own_keys, own_args
  own_keys, own_args = k + SETTLEMENT_KEYS, a + SHORT_ARGS
  local slot, raw, flags = ARGV[a + 1], ARGV[a + 3], ARGV[a + 5]
  local job = {
    processing = KEYS[k + 1], heartbeat = KEYS[k + 2], record = KEYS[k + 3], slot = slot, token = ARGV[a + 2],
    raw = raw, next_raw = raw, queue = tonumber(ARGV[a + 4]), result = ARGV[a + 6], duration = ARGV[a + 7],
    error = '', kind = '', mistaken_id = '', path = '',
  }
  if flags == '' then return job end
  job.is_claiming = string.find(flags, 'n', 1, true)
  if job.is_claiming and not is_claiming[slot] then claiming[#claiming + 1], is_claiming[slot] = job, true end
  if string.find(flags, 'x', 1, true) then
    own_args = own_args + LONG_ARGS
    job.died, job.superseded = string.find(flags, 'd', 1, true), string.find(flags, 's', 1, true)
    job.has_no_id, job.refused = string.find(flags, 'u', 1, true), string.find(flags, 'r', 1, true)
    job.id, job.attempt, job.event, job.next_raw = ARGV[a + 8], ARGV[a + 9], ARGV[a + 10], ARGV[a + 11]
    job.error, job.kind, job.delay, job.mistaken_id = ARGV[a + 12], ARGV[a + 13], tonumber(ARGV[a + 14]), ARGV[a + 15]
    job.path, job.signature, job.device = ARGV[a + 16], ARGV[a + 17], ARGV[a + 18]
  end
  if string.find(flags, 'o', 1, true) then
    own_keys, own_args = own_keys + 1, own_args + 1
    job.orders, job.order = KEYS[own_keys], ARGV[own_args]
  end
  if read_hook then read_hook(job, flags) end
  return job
end
local function read_record(job)
  return read('HMGET', job.record, 'started', 'attempts', 'queued', 'created', 'worker', 'state', 'deferred')
end
local function read_before_move(job)
  job.was = read_record(job)
  if job.mistaken_id ~= '' then job.mistaken_was = read('HMGET', RECORDS .. job.mistaken_id, 'worker', 'adopted') end
  if job.path ~= '' then read('HGET', LEDGER, job.path) end -- for its type; a job before this one may change the value
end
local is_changed = {}
local function end_claim(job)
  local was = is_changed[job.record] and read_record(job) or job.was -- two copies of a job may end in one batch
  is_changed[job.record] = true
  if not was[4] then redis.call('HSET', job.record, 'created', NOW) end
  if was[5] ~= job.slot or was[6] ~= 'running' or job.next_raw ~= job.raw then
    redis.call('HSET', job.record, 'json', job.next_raw, 'queue', queue_name[job.queue], 'worker', job.slot)
  end
  return was
end
local function plain_attempt(job)
  local duration = job.duration ~= '' and ',"duration_ms":' .. job.duration or ''
  return ',"worker":"' .. job.slot .. '","outcome":"completed"' .. duration
end
local function end_attempt(job, state, ...)
  local was = end_claim(job)
  local count_before = tonumber(was[2]) or 0
  local n = int_text(count_before + 1)
  if was[7] then redis.call('HDEL', job.record, 'deferred') end
  redis.call('HSET', job.record, 'state', state, 'error', job.error, 'attempts', n, 'attempt:' .. n,
    '{"started_ms":' .. (was[1] or '0') .. ',"ended_ms":' .. NOW .. (job.attempt or plain_attempt(job)) .. '}', ...)
  if count_before >= ATTEMPTS_KEPT then
    redis.call('HDEL', job.record, 'attempt:' .. int_text(count_before + 1 - ATTEMPTS_KEPT))
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
local function count_failure(job)
  if job.died then
    count('recovered')
  elseif not job.refused then
    count('failed')
  end
  if job.kind ~= '' then count('error:' .. job.kind) end
end
local function prepare_scheduled(job)
  while redis.call('ZSCORE', SCHEDULED, job.next_raw) do job.next_raw = job.next_raw .. ' ' end
  return int_text(now + job.delay)
end
local function add_to_scheduled(job, due)
  redis.call('PERSIST', job.record)
  redis.call('ZADD', SCHEDULED, due, job.next_raw)
end
local function defer_to_scheduled(job)
  local due = prepare_scheduled(job)
  end_claim(job)
  redis.call('HSET', job.record, 'state', 'retrying', 'due', due, 'since', NOW, 'deferred', job.error)
  redis.call('HINCRBY', job.record, 'deferred_count', 1)
  add_to_scheduled(job, due)
end
local function move_to_scheduled(job)
  local due = prepare_scheduled(job)
  end_attempt(job, 'retrying', 'due', due, 'since', NOW)
  add_to_scheduled(job, due)
  if not job.died then count('retried') end
  count_failure(job)
end
local function undo_mistaken_record(job)
  local record, was = RECORDS .. job.mistaken_id, job.mistaken_was
  if was[1] ~= job.slot then return end
  if was[2] == 'none' then
    redis.call('DEL', record)
  elseif was[2] then
    redis.call('HSET', record, 'state', was[2])
  else
    redis.call('HSET', record, 'state', 'pending')
    redis.call('HINCRBY', record, 'queued', 1)
    count('adopted')
  end
end
local function move_to_dead(job)
  if job.mistaken_id ~= '' then undo_mistaken_record(job) end
  end_attempt(job, 'dead', 'ended', NOW)
  redis.call('PERSIST', job.record)
  redis.call('LPUSH', DEAD, job.next_raw)
  count('dead')
  count_failure(job)
end
local function bury_front(slot, number, raw)
  local id = 'raw-' .. redis.sha1hex(raw)
  local problem = string.format('not a job: it has %d bytes; at most %d are decoded', #raw, MAX_DECODED_BYTES)
  local job = {
    record = RECORDS .. id, slot = slot, raw = raw, next_raw = raw, queue = number, refused = true, error = problem,
    kind = 'Undecodable', mistaken_id = '', path = '',
    attempt = ',"worker":"' .. slot .. '","outcome":"refused","error":"' .. problem .. '"',
  }
  require_access(DEAD, 'list', 'LPUSH')
  require_access(queue_key[number], 'list', 'LSET', 'RPOP')
  read_before_move(job)
  redis.call('HSET', job.record, 'queue', queue_name[number], 'worker', slot)
  job.was[5], job.was[6] = slot, 'running' -- so end_attempt() does not write the bytes
  end_attempt(job, 'dead', 'ended', NOW)
  redis.call('PERSIST', job.record)
  redis.call('LPUSH', DEAD, raw)
  redis.call('LSET', queue_key[number], '-1', '')
  redis.call('RPOP', queue_key[number])
  for _, name in ipairs({ 'adopted', 'consumed', 'dead' }) do count(name) end
  count_failure(job)
  add_event('{"event":"job:dead","job_id":"' .. id .. '","type":null,"priority":"' .. queue_name[number]
    .. '","worker_id":"' .. slot .. '","duration_ms":0,"error":"' .. problem
    .. '","retry_count":0,"filepath":"","at":0}')
  return { slot, number, id, problem }
end
local function move_to_front(job)
  if job.has_no_id then
    push_without_record(job.next_raw, job.queue, 'RPUSH')
    job.has_no_record = true
  else
    end_attempt(job, 'pending')
    push(job.record, job.next_raw, job.queue, 'RPUSH')
  end
  count(job.died and 'recovered' or 'released')
  if job.kind ~= '' then count('error:' .. job.kind) end
end
local function is_older(token, last)
  return tonumber(token) < (tonumber(last or '') or 0)
end
local is_freed = {}
local function find_held(jobs, slots)
  local answers, held_jobs, settled_here, fenced = {}, {}, {}, 0
  local settled_last = read('HMGET', SETTLED, unpack(slots))
  for i, job in ipairs(jobs) do
    local last = settled_here[job.slot] or settled_last[i]
    if last == job.token then
      answers[i] = 'done already'
    elseif settled_here[job.slot] or is_older(job.token, last) or not read('LPOS', job.processing, job.raw) then
      answers[i] = 'fenced'
      fenced = fenced + 1
    else
      read_before_move(job)
      answers[i] = 'done'
      settled_here[job.slot] = job.token
      held_jobs[#held_jobs + 1] = job
    end
  end
  return answers, held_jobs, fenced
end
local function require_orders(jobs)
  for _, job in ipairs(jobs) do
    if job.orders then
      require_access(job.orders, 'hash', 'HSET')
      return
    end
  end
end
local function keep_order(job)
  if not job.orders then return end
  local id = string.sub(job.record, #RECORDS + 1)
  redis.call('HSET', job.orders, id, NOW .. ' ' .. job.slot .. '\n' .. job.order)
end
local function require_end_of_claims(held_jobs)
  if #held_jobs == 0 then return end
  require_permission(held_jobs[1].processing, 'LREM')
  require_permission(held_jobs[1].heartbeat, 'SET')
  local heartbeats = {}
  for _, job in ipairs(held_jobs) do
    if not job.is_claiming then heartbeats[#heartbeats + 1] = job.heartbeat end
  end
  require_orders(held_jobs)
  if require_hook then require_hook(held_jobs) end
  require_strings(heartbeats)
end
local function end_claims(held_jobs)
  local settled_now = {}
  for i, job in ipairs(held_jobs) do
    settled_now[2 * i - 1], settled_now[2 * i] = job.slot, job.token
    if job.is_claiming then
      is_freed[job.slot] = true
    else
      redis.call('SET', job.heartbeat, '', 'PX', HEARTBEAT_TTL)
    end
    redis.call('LREM', job.processing, '1', job.raw)
  end
  redis.call('HSET', SETTLED, unpack(settled_now))
end
local function settle(move, finish)
  require_permission(SETTLED, 'HMGET', 'HSET')
  if own_size == 0 then return {} end
  local jobs, slots = {}, {}
  for i = 1, own_size do
    jobs[i] = next_settlement()
    slots[i] = jobs[i].slot
  end
  local answers, held_jobs, fenced = find_held(jobs, slots)
  require_end_of_claims(held_jobs)
  if fenced > 0 then count('fenced', fenced) end -- after the last check: a refused part must not change a counter
  if #held_jobs == 0 then return answers end
  for _, job in ipairs(held_jobs) do
    move(job)
    keep_order(job)
    if job.event then
      add_event(job.event)
    else
      local duration = job.duration ~= '' and job.duration or '0'
      add_job_event('job:completed', job.raw, queue_name[job.queue], job.slot, duration)
    end
    if keep_hook then keep_hook(job) end
  end
  if finish then finish() end
  end_claims(held_jobs)
  return answers
end
local PARTS = {}
PARTS.complete = function()
require_ended_list(COMPLETED)
require_permission(LEDGER, 'HGET', 'HSET')
local raws = {}
return settle(function(job)
  local has_copies = end_attempt(job, 'completed', 'ended', NOW, 'result', job.result)
  expire_record(job, has_copies)
  raws[#raws + 1] = job.next_raw
  count('completed')
  if job.superseded then count('superseded') end
  if job.path ~= '' then
    remember_version(job.path, redis.call('HGET', LEDGER, job.path), job.signature, job.device, job.id)
  end
end, function() push_ended(COMPLETED, 'completed', raws) end)
end
PARTS.retry = function()
require_access(SCHEDULED, 'zset', 'ZSCORE', 'ZADD')
return settle(move_to_scheduled)
end
PARTS.bury = function()
require_access(DEAD, 'list', 'LPUSH')
return settle(move_to_dead)
end
PARTS.release = function()
require_queues('RPUSH')
return settle(move_to_front)
end
PARTS.cancel = function()
require_ended_list(CANCELLED)
local raws = {}
return settle(function(job)
  local has_copies = end_attempt(job, 'cancelled', 'ended', NOW)
  expire_record(job, has_copies)
  raws[#raws + 1] = job.next_raw
  count('cancelled')
end, function() push_ended(CANCELLED, 'cancelled', raws) end)
end
PARTS.defer = function()
require_access(SCHEDULED, 'zset', 'ZSCORE', 'ZADD')
return settle(defer_to_scheduled)
end
PARTS.claim = function()
local claims_made, every = tonumber(ARGV[own_args + 1]), tonumber(ARGV[own_args + 2])
local first = ARGV[own_args + 3] == '1' and claiming or {}
local slots, lists, heartbeats, total = {}, {}, {}, #first + own_size
local paused, is_paused, gone, claims, buried = {}, {}, {}, {}, {}
if total == 0 then return { paused, gone, claims, claims_made, buried } end -- a settlement before this was refused

for i, job in ipairs(first) do slots[i], lists[i], heartbeats[i] = job.slot, job.processing, job.heartbeat end
for i = 1, own_size do
  local n = #first + i
  slots[n], lists[n], heartbeats[n] = ARGV[own_args + 3 + i], KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i]
end

local is_empty = {}
for i = 1, QUEUES do
  require_permission(queue_key[i], 'RPOPLPUSH', 'LRANGE')
  is_empty[i] = read('LLEN', queue_key[i]) == 0 -- this also shows that it is a list
  if read('SISMEMBER', PAUSED, queue_name[i]) == 1 then
    paused[#paused + 1] = i
    is_paused[i] = true
  end
end
require_permission(lists[1], 'RPOPLPUSH')
require_permission(heartbeats[1], 'SET')

local function first_queue()
  if every == 0 or (claims_made + 1) % every ~= 0 then return 1 end
  return 2 + ((claims_made + 1) / every - 1) % (QUEUES - 1)
end

local fronts = {}
local function front(i)
  if is_paused[i] then return nil end
  if is_empty[i] then return nil end
  local raws = fronts[i]
  if not raws or #buried > #raws then -- after a burial, what was read may be one too few
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

local function next_job(slot)
  local number, raw = next_front()
  if not number or #raw <= MAX_DECODED_BYTES then return number, raw end
  if #buried > 0 then return nil end
  buried[1] = bury_front(slot, number, raw)
  table.remove(fronts[number])
  return next_job(slot)
end

local function mark_running(slot, number, raw, record, was)
  local queued = tonumber(was[1]) or 0
  if queued > 0 then
    redis.call('HSET', record, 'state', 'running', 'worker', slot, 'queue', queue_name[number], 'json', raw,
      'started', NOW, 'due', '0', 'queued', int_text(queued - 1))
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
  local id = read_id(raw)
  local was = id and read('HMGET', RECORDS .. id, 'queued', 'state', 'after') -- read before anything moves
  redis.call('RPOPLPUSH', queue_key[number], processing)
  table.remove(fronts[number])
  redis.call('SET', heartbeat, raw, 'PX', HEARTBEAT_TTL)
  if id then
    mark_running(slot, number, raw, RECORDS .. id, was)
    add_job_event('job:started', raw, queue_name[number], slot, '0')
  else
    count('adopted')
  end
  count('consumed')
  claims_made = claims_made + 1
  return { slot, number, raw, id or '', NOW, was and was[3] and is_blocked(was[3]) or 0 }
end

local function held_row(slot, raw)
  local id = read_id(raw)
  local was = id and read('HMGET', RECORDS .. id, 'queue', 'started', 'after') or {}
  return { slot, queue_number[was[1] or ''] or 0, raw, id or '', was[2] or '0', is_blocked(was[3]) }
end

local held, taken = {}, {}
local registered = read('HMGET', WORKERS, unpack(slots))
local is_any_held = read('EXISTS', unpack(lists)) > 0
local unknown = {} -- SET replaces any type; a slot that this call has freed had a heartbeat before
for i = 1, total do
  if registered[i] then held[i] = is_any_held and read('LINDEX', lists[i], -1) end
  if not is_freed[slots[i]] then unknown[#unknown + 1] = heartbeats[i] end
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
    claims[#claims + 1] = held_row(slot, raw)
    return
  end
  local number, front_raw = next_job(slot)
  if not number then
    if is_freed[slot] then redis.call('SET', heartbeats[i], '', 'PX', HEARTBEAT_TTL) end
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
if failure and #claims == 0 then error(failure) end
return { paused, gone, claims, claims_made, buried }
end
local parts = tonumber(ARGV[own_args + 1])
local head, answers = own_args + 1, {}
own_args = head + 4 * parts
require_record_permissions()
require_counters()

for i = 1, parts do
  local verb, next_keys, next_args = ARGV[head + 1], own_keys + ARGV[head + 3], own_args + ARGV[head + 4]
  own_size = tonumber(ARGV[head + 2])
  local ok, answer = pcall(PARTS[verb])
  answers[i] = answer
  if not ok and type(answer) ~= 'table' then answers[i] = { err = 'ERR ' .. tostring(answer) } end
  head, own_keys, own_args = head + 4, next_keys, next_args
end
write_counters()
publish_events()
return answers
