-- Settlements: what the verbs that end a claim share.
--
-- own KEYS   of each settlement: processing list, heartbeat, record; with flag o also: orders; with flag f also:
--            those of follow_ups.lua
-- own ARGV   of each settlement:
--            1 slot, 2 token, 3 raw, 4 queue number and flags in one text, 5 result (of a burial: the fingerprint of its
--            error), 6 duration in ms ('' = none). With flag x also:
--            7 id, 8 the attempt's JSON from `,"worker"` on, 9 event ('' = none), 10 next_raw, 11 error (of a
--            deferral: its reason), 12 kind of error, 13 delay in ms, 14 id of the record that the claim made by mistake
--            ('' = none), 15 path, 16 signature and 17 device of the version that the handler leaves behind ('' = none).
--            With flag o also: the order. With flag f also: those of follow_ups.lua
-- flags      d = the worker died, r = refused before the handler ran, s = superseded, u = the bytes have no id,
--            n = the same call claims for this slot, and that claim renews the heartbeat, x = arguments 7 to 17 follow;
--            without it this is the completion of an attempt without an error, o = an order follows, f = follow-ups
--            and outputs follow
local SETTLEMENT_KEYS, SHORT_ARGS, LONG_ARGS = 3, 6, 11
local ATTEMPTS_KEPT = 20

-- One settlement of each slot that settles and claims in this call, in their order.
local claiming, is_claiming = {}, {}

-- Functions that a script sets if its settlements may carry follow-ups or outputs (follow_ups.lua). Other scripts do not
-- even define them.
local read_hook, require_hook, keep_hook

-- Queue number and flags of settlements. Most settlements of a call have the same, so each text is read once.
local forms = {}
local function read_form(text)
  local number, flags = string.match(text, '^(%d+)(%a*)$')
  local form = { queue = tonumber(number), flags = flags, is_plain = flags == '' or flags == 'n' }
  for flag in string.gmatch(flags, '%a') do form[flag] = true end
  forms[text] = form
  return form
end

-- The next settlement; own_keys and own_args move on.
local function next_settlement()
  local k, a = own_keys, own_args
  own_keys, own_args = k + SETTLEMENT_KEYS, a + SHORT_ARGS
  local slot, token, raw, form_text, result, duration = unpack(ARGV, a + 1, a + SHORT_ARGS)
  local form = forms[form_text] or read_form(form_text)
  local job = {
    processing = KEYS[k + 1], heartbeat = KEYS[k + 2], record = KEYS[k + 3], slot = slot, token = token,
    raw = raw, next_raw = raw, queue = form.queue, result = result, duration = duration,
    error = '', kind = '', mistaken_id = '', path = '', is_claiming = form.n,
  }
  if form.n and not is_claiming[slot] then claiming[#claiming + 1], is_claiming[slot] = job, true end
  if form.is_plain then return job end
  if form.x then
    job.died, job.superseded, job.has_no_id, job.refused = form.d, form.s, form.u, form.r
    job.id, job.attempt, job.event, job.next_raw, job.error, job.kind, job.delay, job.mistaken_id, job.path,
      job.signature, job.device = unpack(ARGV, own_args + 1, own_args + LONG_ARGS)
    job.delay, own_args = tonumber(job.delay), own_args + LONG_ARGS
  end
  if form.o then
    own_keys, own_args = own_keys + 1, own_args + 1
    job.orders, job.order = KEYS[own_keys], ARGV[own_args]
  end
  if read_hook then read_hook(job, form.flags) end
  return job
end

local function read_record(job)
  return read('HMGET', job.record, 'started', 'attempts', 'queued', 'created', 'worker', 'state', 'deferred',
    'batch', 'origin', 'before', 'error', 'result')
end

local function refused_attempt(slot, problem)
  return ',"worker":"' .. slot .. '","outcome":"refused","is_fatal":true,"error":' .. json_text(problem)
end

-- A job of fileq's own has come in under the id of this one while it ran, and has the record now. So this one is buried
-- under an id of its bytes, whatever its settlement says.
local function make_foreign(job)
  local id = string.sub(job.record, #RECORDS + 1)
  require_access(DEAD, 'list', 'LPUSH')
  job.is_foreign, job.claimed_id, job.record, job.next_raw = true, id, foreign_record(job.raw), job.raw
  job.error, job.kind, job.result, job.mistaken_id, job.path = foreign_error(id), 'ForeignJob', FOREIGN_FINGERPRINT, '', ''
  job.refused, job.died, job.attempt = true, false, refused_attempt(job.slot, job.error)
  job.was = read_record(job)
end

-- Read everything that moving the job needs, before anything is written.
local function read_before_move(job)
  job.was = read_record(job)
  if is_foreign(job.record, job.raw, job.was[8], job.was[9]) then make_foreign(job) end
  if job.mistaken_id ~= '' then job.mistaken_was = read('HMGET', RECORDS .. job.mistaken_id, 'worker') end
  if job.path ~= '' then read('HGET', LEDGER, job.path) end -- for its type; a job before this one may change the value
end

-- Write what the record says of the claim. Returns the record as it was before.
local is_changed = {}
local function end_claim(job)
  local was = is_changed[job.record] and read_record(job) or job.was -- two copies of a job may end in one batch
  is_changed[job.record] = true
  if not was[4] then redis.call('HSET', job.record, 'created', NOW) end
  if was[10] then redis.call('HDEL', job.record, 'before') end -- the bytes are a job: there is nothing to undo
  -- The claim wrote these fields already, unless a copy of the job was claimed or settled since.
  if was[5] ~= job.slot or was[6] ~= 'running' or job.next_raw ~= job.raw then
    redis.call('HSET', job.record, 'json', job.next_raw, 'queue', queue_name[job.queue], 'worker', job.slot)
  end
  return was
end

local function plain_attempt(job)
  local duration = job.duration ~= '' and ',"duration_ms":' .. job.duration or ''
  return ',"worker":"' .. job.slot .. '","outcome":"completed"' .. duration
end

-- Add the attempt to the record and change its state. An empty error is written only over another one. Returns whether
-- copies of the job wait in queues, and the record as it was before.
local function end_attempt(job, state, ...)
  state_after = state
  local was = end_claim(job)
  local count_before = tonumber(was[2]) or 0
  local n = int_text(count_before + 1)
  local attempt = job.attempt or plain_attempt(job)
  if was[7] then attempt = attempt .. ',"deferred":' .. cjson.encode(was[7]) end
  if was[7] then redis.call('HDEL', job.record, 'deferred') end
  if job.error ~= (was[11] or '') then redis.call('HSET', job.record, 'error', job.error) end
  redis.call('HSET', job.record, 'state', state, 'attempts', n, 'attempt:' .. n,
    '{"started_ms":' .. (was[1] or '0') .. ',"ended_ms":' .. NOW .. attempt .. '}', ...)
  if count_before >= ATTEMPTS_KEPT then
    redis.call('HDEL', job.record, 'attempt:' .. int_text(count_before + 1 - ATTEMPTS_KEPT))
  end
  return (was[3] or '0') ~= '0', was
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

-- Returns the due time. A copy of the job with the same bytes may be in the set: then a blank is appended to this one.
local function prepare_scheduled(job)
  while redis.call('ZSCORE', SCHEDULED, job.next_raw) do job.next_raw = job.next_raw .. ' ' end
  return int_text(now + job.delay)
end

local function add_to_scheduled(job, due)
  redis.call('PERSIST', job.record)
  redis.call('ZADD', SCHEDULED, due, job.next_raw)
end

-- Schedule a job without counting an attempt: its error, attempts and counters stay as they are.
local function defer_to_scheduled(job)
  local due = prepare_scheduled(job)
  end_claim(job)
  redis.call('HSET', job.record, 'state', 'deferred', 'due', due, 'since', NOW, 'deferred', job.error,
    'deferred_last', NOW)
  local count = redis.call('HINCRBY', job.record, 'deferred_count', 1)
  if count == 1 then redis.call('HSET', job.record, 'deferred_first', NOW) end
  add_to_scheduled(job, due)
end

local function move_to_scheduled(job)
  local due = prepare_scheduled(job)
  end_attempt(job, 'retrying', 'due', due, 'since', NOW)
  add_to_scheduled(job, due)
  if not job.died then count('retried') end
  count_failure(job)
end

-- The claim changed a record, and then the bytes turned out to be no job: undo what the claim did.
local function undo_mistaken_record(job)
  if job.mistaken_was[1] == job.slot then undo_claim(RECORDS .. job.mistaken_id, job.raw) end
end

local function move_to_dead(job)
  if job.mistaken_id ~= '' then undo_mistaken_record(job) end
  end_attempt(job, 'dead', 'ended', NOW, 'fingerprint', job.result)
  redis.call('PERSIST', job.record)
  redis.call('LPUSH', DEAD, job.next_raw)
  count('dead')
  count_failure(job)
end

-- Bury the front of a queue for a slot that would have claimed it: the same changes as those of a claim and a burial.
-- It is too long to be decoded (then the record does not hold the bytes), or foreign bytes under `taken_id`, the id of
-- another job. They never reach the slot. The caller removes them from the queue. Returns slot, queue number, id and error.
local function bury_front(slot, number, raw, taken_id)
  local record = foreign_record(raw)
  local id = string.sub(record, #RECORDS + 1)
  local problem = taken_id and foreign_error(taken_id)
    or string.format('not a job: it has %d bytes; at most %d are decoded', #raw, MAX_DECODED_BYTES)
  local job = {
    record = record, slot = slot, raw = raw, next_raw = raw, queue = number, refused = true, error = problem,
    kind = taken_id and 'ForeignJob' or 'Undecodable', mistaken_id = '', path = '',
    attempt = refused_attempt(slot, problem),
  }
  require_access(DEAD, 'list', 'LPUSH')
  read_before_move(job)
  if not taken_id then
    redis.call('HSET', job.record, 'queue', queue_name[number], 'worker', slot)
    job.was[5], job.was[6] = slot, 'running' -- so end_attempt() does not write the bytes
  end
  local too_long = 'c3f93c5c9839' -- what core/fingerprint.py makes of that error
  end_attempt(job, 'dead', 'ended', NOW, 'fingerprint', taken_id and FOREIGN_FINGERPRINT or too_long)
  redis.call('PERSIST', job.record)
  redis.call('LPUSH', DEAD, raw)
  for _, name in ipairs({ 'adopted', 'consumed', 'dead' }) do count(name) end
  count_failure(job)
  add_event('{"event":"job:dead","job_id":"' .. id .. '","type":null,"priority":"' .. queue_name[number]
    .. '","worker_id":"' .. slot .. '","duration_ms":0,"error":' .. json_text(problem)
    .. ',"retry_count":0,"filepath":"","at":0}')
  return { slot, number, id, problem }
end

local function move_to_front(job)
  if job.mistaken_id ~= '' then undo_mistaken_record(job) end
  if job.has_no_id or job.mistaken_id ~= '' then
    push_without_record(job.next_raw, job.queue, 'RPUSH')
    job.has_no_record = true
  else
    end_attempt(job, 'pending')
    push(job.record, job.next_raw, job.queue, 'RPUSH')
  end
  count(job.died and 'recovered' or 'released')
  if job.kind ~= '' then count('error:' .. job.kind) end
end

-- The server may execute a call late, when its slot has settled later claims. The slot may hold the same bytes again,
-- and this settlement is not the outcome of that claim.
local function is_older(token, last)
  return tonumber(token) < (tonumber(last or '') or 0)
end

-- The slots whose claim this call has settled: they are free, and the claim part may give them the next job. To each, the
-- settled job while it is still in the slot's list, else false: replacing it by the next job costs less than removing it
-- first. What the claim part does not replace is removed after all parts.
local freed = {}

local function empty_list(slot)
  local job = freed[slot]
  if not job then return end
  freed[slot] = false
  redis.call('LREM', job.processing, '1', job.raw)
end

-- Whether this script, which counts no members, has met a member of a batch. Then it refuses the whole part, and nothing
-- is claimed.
local has_met_member = false

-- The answer for each settlement, the jobs that their slots still hold, and how many settlements are fenced.
local function find_held(jobs, slots)
  local answers, held_jobs, settled_here, fenced = {}, {}, {}, 0
  local settled_last = read('HMGET', SETTLED, unpack(slots))
  for i, job in ipairs(jobs) do
    empty_list(job.slot) -- it may have settled another claim, by another verb
    local last = settled_here[job.slot] or settled_last[i]
    if last == job.token then
      answers[i] = 'done already'
    elseif settled_here[job.slot] or is_older(job.token, last) or not read('LPOS', job.processing, job.raw) then
      answers[i] = 'fenced'
      fenced = fenced + 1
    else
      read_before_move(job)
      if job.was[8] and not joining then
        has_met_member = true
        refuse('BATCH ' .. job.record .. ' is a member of a batch')
      end
      answers[i] = 'done'
      settled_here[job.slot] = job.token
      held_jobs[#held_jobs + 1] = job
    end
  end
  return answers, held_jobs, fenced
end

-- All orders are in one hash.
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
  local id = job.claimed_id or string.sub(job.record, #RECORDS + 1)
  redis.call('HSET', job.orders, id, NOW .. ' ' .. job.slot .. '\n' .. job.order)
end

local function require_end_of_claims(held_jobs)
  if #held_jobs == 0 then return end
  require_permission(held_jobs[1].processing, 'LLEN', 'LREM')
  require_permission(held_jobs[1].heartbeat, 'SET')
  local heartbeats = {}
  for _, job in ipairs(held_jobs) do
    if not job.is_claiming then heartbeats[#heartbeats + 1] = job.heartbeat end
  end
  require_orders(held_jobs)
  if require_hook then require_hook(held_jobs) end
  require_strings(heartbeats)
end

-- Remove the jobs from the processing lists, except those that the next job may replace, and remember each slot's last
-- settlement.
local function end_claims(held_jobs)
  local settled_now = {}
  for i, job in ipairs(held_jobs) do
    settled_now[2 * i - 1], settled_now[2 * i] = job.slot, job.token
    if job.is_claiming then
      freed[job.slot] = job
      if redis.call('LLEN', job.processing) > 1 then empty_list(job.slot) end
    else
      redis.call('SET', job.heartbeat, '', 'PX', HEARTBEAT_TTL)
      redis.call('LREM', job.processing, '1', job.raw)
    end
  end
  redis.call('HSET', SETTLED, unpack(settled_now))
end

-- Settle the claims of this part: `move` moves each job that its slot still holds, `finish` runs once after them, then
-- the processing lists are emptied. Returns for each: done, done already (a repeat), or fenced (the slot no longer
-- holds the job; nothing changed).
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
    if job.is_foreign then move_to_dead(job) else move(job) end
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
