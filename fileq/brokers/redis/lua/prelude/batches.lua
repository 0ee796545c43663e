-- Batches: the rules of core/batch.py, inside the step that adds or ends a job.
--
-- A script reads each batch once, changes it here, and writes it at its end (write_batches). The keys of a batch are
-- made here, because only the server knows which batch a job is in, and which are its parents: <prefix>:batch:<id> is a
-- hash; :members, :dead, :known and :children are sets. What ends a job never fails because of a batch: if one of
-- these keys has another type, the member is not counted, and count_members does it later.
--
-- KEYS, ARGV: see common.lua

local BATCH = string.sub(RECORDS, 1, -5) .. 'batch:' -- the prefix of the records ends with `job:`
local batches = {} -- by id, as this script has read them; false = unknown

-- 1 if this member must not run because its batch is cancelled, else 0. As runs_though_cancelled() of core/batch.py.
-- By pcall: a key of another type must not stop a claim.
local function is_batch_cancelled(id, member)
  if string.sub(member, -6) == '.catch' or string.sub(member, -8) == '.finally' then return 0 end
  local batch = batches[id]
  local is_cancelled = batch and batch.is_cancelled or redis.pcall('HMGET', BATCH .. id, 'is_cancelled')[1]
  return is_cancelled == '1' and 1 or 0
end

local ALL_BATCHES = string.sub(RECORDS, 1, -5) .. 'batches'
local UNFINISHED_BATCHES = ALL_BATCHES .. ':unfinished'
local LEVELS_MAX, KEPT_MS = 8, '2592000000'
local OWN = 'fileq' -- the origin of a callback, as in core/own_jobs.py
local ENDINGS = { completed = true, dead = true, cancelled = true }
local finished_batches = {}

local function read_batch(id)
  local key = BATCH .. id
  local was = redis.pcall('HMGET', key, 'state', 'is_cancelled', 'allow_failures', 'parent', 'fired', 'dead_id', 'total',
    'completed', 'dead', 'cancelled', 'deleted', 'is_counted', 'created', 'touched')
  local members, children = redis.pcall('SCARD', key .. ':members'), redis.pcall('SCARD', key .. ':children')
  if was.err or not was[1] or type(members) ~= 'number' or type(children) ~= 'number' then return false end
  return {
    id = id, key = key, state = was[1], is_cancelled = was[2], allow_failures = was[3], parent = was[4], fired = was[5],
    dead_id = was[6], total = tonumber(was[7]), completed = tonumber(was[8]), dead = tonumber(was[9]),
    cancelled = tonumber(was[10]), deleted = tonumber(was[11]), is_counted = was[12], created = was[13],
    touched = was[14], unfinished = members + children, changed = {}, added = {},
  }
end

local function batch_of(id)
  if batches[id] == nil then batches[id] = read_batch(id) end
  return batches[id]
end

local function change_batch(batch, field, value)
  batch[field], batch.changed[field] = value, true
end

-- A job is still among the members if its record was lost before it was enqueued again; then it is no new member.
local function write_added(batch)
  local added, known = batch.added, #batch.added
  if known == 0 then return end
  for i = 1, #added, 500 do
    known = known - redis.call('SADD', batch.key .. ':members', unpack(added, i, math.min(i + 499, #added)))
  end
  if known < #added then change_batch(batch, 'touched', NOW) end
  batch.total, batch.unfinished, batch.added = batch.total - known, batch.unfinished - known, {}
end

-- Write every batch that has changed. Called once, at the end of a script, before its counters are written.
local function write_batches()
  for _, batch in pairs(batches) do
    if batch then
      write_added(batch)
      local values = {}
      for field in pairs(batch.changed) do
        local value = batch[field]
        values[#values + 1], values[#values + 2] = field, type(value) == 'number' and int_text(value) or value
      end
      if #values > 0 then redis.call('HSET', batch.key, unpack(values)) end
    end
  end
end

local function add_member(batch, member)
  change_batch(batch, 'total', batch.total + 1)
  batch.unfinished = batch.unfinished + 1
  batch.added[#batch.added + 1] = member
end

local function is_batch_open(id)
  local batch = batch_of(id)
  return batch and batch.state == 'open' and batch.is_cancelled ~= '1'
end

local function first_error_of(batch)
  return batch.dead_error or redis.call('HMGET', batch.key, 'dead_error')[1] or ''
end

local function counts_text(batch)
  return string.format('"total":%d,"completed":%d,"dead":%d,"cancelled":%d,"deleted":%d', batch.total, batch.completed,
    batch.dead, batch.cancelled, batch.deleted)
end

-- BatchFacts of core/batch.py.
local function facts_of(batch, kind)
  return '{"id":"' .. batch.id .. '","callback":"' .. kind .. '",' .. counts_text(batch) .. ',"first_dead":' ..
    json_text(batch.dead_id) .. ',"first_error":' .. json_text(first_error_of(batch)) .. '}'
end

-- Enqueue a callback that the batch has, once, with the facts of now in the place of their mark.
local function fire_callback(batch, kind)
  if string.find(batch.fired, kind, 1, true) then return end
  local stored = redis.call('HMGET', batch.key, 'callback:' .. kind, 'queue:' .. kind, 'deadline:' .. kind)
  local raw, deadline = stored[1], stored[3] or ''
  if not raw then return end
  change_batch(batch, 'fired', batch.fired == '' and kind or batch.fired .. ' ' .. kind)
  local id = batch.id .. '.' .. kind
  local record, number = RECORDS .. id, queue_number[stored[2] or ''] or QUEUES
  if has_record(record, OWN) then return end
  write_added(batch) -- corrects the total
  local from, to = string.find(raw, '"\\u0000facts"', 1, true)
  if from then raw = string.sub(raw, 1, from - 1) .. facts_of(batch, kind) .. string.sub(raw, to + 1) end
  replace_record(record, OWN)
  keep_deadline(record, id, deadline)
  local parent = batch.parent ~= '' and batch_of(batch.parent)
  if parent and parent.state ~= 'finished' then
    add_member(parent, id)
    redis.call('HSET', record, 'batch', parent.id)
  end
  redis.call('HSET', record, 'state', 'pending', 'json', raw, 'queue', queue_name[number], 'created', NOW, 'queued',
    '1')
  redis.call('LPUSH', queue_key[number], raw)
  count('produced')
  add_job_event('job:created', raw, nil, '', '0')
end

-- Count a member that was not counted yet. The caller calls finish_batch() afterwards.
local function count_ending(batch, ending, member, problem)
  batch.unfinished = batch.unfinished - 1
  change_batch(batch, ending, batch[ending] + 1)
  if ending ~= 'dead' then return end
  if batch.allow_failures ~= '1' then change_batch(batch, 'is_cancelled', '1') end
  if batch.dead_id ~= '' then return end
  change_batch(batch, 'dead_id', member)
  change_batch(batch, 'dead_error', problem)
  fire_callback(batch, 'catch')
end

local function is_success(batch)
  return batch.dead + batch.cancelled + batch.deleted == 0 and batch.is_cancelled ~= '1'
end

local function failure_of(batch)
  local first = first_error_of(batch)
  return string.format('batch %s failed: %d dead, %d cancelled, %d deleted', batch.id, batch.dead, batch.cancelled,
    batch.deleted) .. (first ~= '' and '; first ' .. first or '')
end

local function add_finished_event(batch)
  if not has_subscribers() then return end
  events[#events + 1] = '{"event":"batch:finished","batch_id":"' .. batch.id .. '",' .. counts_text(batch) ..
    ',"at":' .. NOW .. '}'
end

-- Count a finished child batch in its parent, if the parent has not counted it yet.
local function count_child_ending(parent, batch)
  if redis.call('SREM', parent.key .. ':children', batch.id) == 0 then return false end
  change_batch(batch, 'is_counted', '1')
  local is_dead = not is_success(batch)
  count_ending(parent, is_dead and 'dead' or 'completed', batch.id, is_dead and failure_of(batch) or '')
  return true
end

-- Keys of another type are left alone.
local function expire_batch(batch)
  redis.call('PEXPIRE', batch.key, KEPT_MS)
  for _, set in ipairs({ batch.key .. ':dead', batch.key .. ':known' }) do
    if type(redis.pcall('SCARD', set)) == 'number' then redis.call('PEXPIRE', set, KEPT_MS) end
  end
end

-- Finish a sealed batch without unfinished members, then its parent if this was the last member, and so on.
local function finish_batch(batch)
  for _ = 1, LEVELS_MAX do
    write_added(batch)
    if batch.state ~= 'sealed' or batch.unfinished > 0 then return end
    change_batch(batch, 'state', 'finished')
    change_batch(batch, 'finished', NOW)
    expire_batch(batch)
    redis.pcall('ZREM', UNFINISHED_BATCHES, batch.id)
    if is_success(batch) then fire_callback(batch, 'then') end
    fire_callback(batch, 'finally')
    finished_batches[#finished_batches + 1] = batch.id
    add_finished_event(batch)
    local parent = batch.parent ~= '' and batch_of(batch.parent)
    if not parent or not count_child_ending(parent, batch) then return end
    batch = parent
  end
end

-- Count a job that has ended, if its batch has not counted it yet.
local function count_member(id, member, ending, problem)
  local batch = batch_of(id)
  if not batch then return false end
  write_added(batch)
  if redis.call('SREM', batch.key .. ':members', member) == 0 then return false end
  if ending == 'dead' and redis.pcall('SADD', batch.key .. ':dead', member) == 0 then
    ending = 'deleted' -- it was enqueued again after its record was lost, and is counted as dead already
  end
  count_ending(batch, ending, member, problem)
  finish_batch(batch)
  return true
end

-- Count a child batch that has finished, or that is unknown, without being counted.
local function count_child(parent, id)
  local child = batch_of(id)
  if child and child.state ~= 'finished' then return end
  if child then
    count_child_ending(parent, child)
  else
    if redis.call('EXISTS', BATCH .. id) == 1 or redis.call('SREM', parent.key .. ':children', id) == 0 then return end
    count_ending(parent, 'deleted', id, '')
  end
  finish_batch(parent)
end

local function seal_batch(batch)
  if batch.state ~= 'open' then return end
  change_batch(batch, 'state', 'sealed')
  change_batch(batch, 'sealed', NOW)
end

local function reopen_batch(batch)
  if batch.state ~= 'finished' then return end
  change_batch(batch, 'state', 'sealed')
  change_batch(batch, 'finished', '0')
  for _, part in ipairs({ '', ':dead', ':known' }) do redis.call('PERSIST', batch.key .. part) end
  redis.pcall('ZADD', UNFINISHED_BATCHES, batch.created, batch.id)
  local parent = batch.is_counted == '1' and batch_of(batch.parent)
  if not parent or parent.state == 'finished' then return end
  change_batch(batch, 'is_counted', '0')
  change_batch(parent, 'dead', parent.dead - 1)
  parent.unfinished = parent.unfinished + 1
  redis.call('SADD', parent.key .. ':children', batch.id)
end

-- Of this batch and those around it, also finished ones: a child of a cancelled batch would be cancelled again.
local function lift_cancellation(batch)
  for _ = 1, LEVELS_MAX do
    if batch.is_cancelled == '1' then change_batch(batch, 'is_cancelled', '0') end
    batch = batch.parent ~= '' and batch_of(batch.parent)
    if not batch then return end
  end
end

-- Count a dead member, which waits again, as unfinished. Its batch is no longer finished or cancelled then.
local function revive_member(id, member)
  local batch = batch_of(id)
  if not batch then return end
  lift_cancellation(batch)
  if redis.pcall('SREM', batch.key .. ':dead', member) ~= 1 then return end
  change_batch(batch, 'dead', batch.dead - 1)
  if redis.call('SADD', batch.key .. ':members', member) == 0 then
    -- It was enqueued again after its record was lost, and is counted as that job.
    change_batch(batch, 'deleted', batch.deleted + 1)
    return
  end
  batch.unfinished = batch.unfinished + 1
  reopen_batch(batch)
end

-- Count a dead member as deleted.
local function delete_member(id, member)
  local batch = batch_of(id)
  if not batch then return end
  if redis.pcall('SREM', batch.key .. ':dead', member) ~= 1 then
    count_member(id, member, 'deleted', '')
    return
  end
  change_batch(batch, 'dead', batch.dead - 1)
  change_batch(batch, 'deleted', batch.deleted + 1)
end

local function require_batch_permissions()
  require_permission(BATCH .. 'any', 'HMGET', 'HSET', 'SCARD', 'SISMEMBER', 'SADD', 'SREM', 'PEXPIRE', 'PERSIST')
  require_permission(UNFINISHED_BATCHES, 'ZADD', 'ZREM')
end

-- Check what fire_callback() needs, before anything is written. May be called again.
local are_callbacks_checked = false
local function require_callbacks()
  if are_callbacks_checked then return end
  are_callbacks_checked = true
  require_permission(RECORDS .. 'any', 'EXISTS', 'HMGET', 'HSET', 'DEL')
  require_queues('LPUSH')
  require_access(DEADLINES, 'zset', 'ZADD')
end

-- Check what counting members needs, before anything is written. `ids` are the batches of the jobs that this call may
-- end, false for a job in no batch.
local function require_counting(ids, may_die)
  local are_permitted = false
  for _, id in ipairs(ids) do
    if id then
      if not are_permitted then require_batch_permissions() end
      are_permitted = true
      local batch = batch_of(id)
      local may_finish = batch and batch.state == 'sealed' and batch.unfinished <= #ids
      if may_finish or batch and may_die and batch.dead_id == '' then require_callbacks() end
    end
  end
end

-- The batch that a follow-up of this member may join even while it is sealed; nil if the member has been counted.
local function followed_batch(id, member)
  local batch = id and batch_of(id)
  if not batch then return nil end
  return redis.call('SISMEMBER', batch.key .. ':members', member) == 1 and id or nil
end

-- Make a new job a member. `follows` is what followed_batch() returned. Returns the batch, or nil if it takes no jobs. The
-- batch of a delivery, whose id begins as in core/own_jobs.py, takes those of its producer and of its members only.
local function join_member(id, member, follows)
  local batch = batch_of(id)
  if not batch or batch.state == 'finished' then return nil end
  if follows ~= id and (not is_batch_open(id) or string.sub(id, 1, 9) == 'delivery-') then return nil end
  add_member(batch, member)
  return id
end

local is_joining_checked = {}
local function require_joining(id)
  if is_joining_checked[id] then return end
  is_joining_checked[id] = true
  require_batch_permissions()
  require_type(BATCH .. id, 'hash')
  require_type(BATCH .. id .. ':members', 'set')
  require_type(BATCH .. id .. ':children', 'set')
end

-- Check what a verb of a batch needs. Its keys follow KEYS[own_keys]: those of Keys.of_batch(), then all batches, then
-- the unfinished ones.
local BATCH_KEYS = { 'hash', 'set', 'set', 'set', 'set', 'zset', 'zset' }
local function require_batch()
  require_batch_permissions()
  for i, kind in ipairs(BATCH_KEYS) do require_type(KEYS[own_keys + i], kind) end
  require_callbacks()
  require_counters()
end

-- What a script sets as `joining` (entries.lua) if its jobs may be members.
local JOINING = {
  require = require_joining, is_open = is_batch_open, join = join_member, write = write_batches,
  finished = finished_batches,
}

-- Enqueue the follow-ups of a waiting job that was cancelled, and count it in its batch. The job has `record`, `extras`
-- and `batch` (false or nil = none).
local function withdraw_member(job)
  local id = string.sub(job.record, #RECORDS + 1)
  add_follow_ups(job.record, job.extras, job.extras.total > 0 and followed_batch(job.batch, id))
  if job.batch then count_member(job.batch, id, 'cancelled', '') end
end

-- The hooks of settlements.lua for a script whose jobs may be members: this one checks, keep_member() writes.
local function require_members(jobs)
  require_follow_ups(jobs)
  local ids, may_die = {}, false
  for i, job in ipairs(jobs) do
    ids[i] = job.was[8] or false
    may_die = may_die or job.event ~= nil -- a plain completion has none
  end
  require_counting(ids, may_die)
end

local function keep_member(job)
  local batch, id = job.was[8], string.sub(job.record, #RECORDS + 1)
  local ending = state_after
  state_after = nil -- a deferral writes none
  keep_follow_ups(job, job.extras and followed_batch(batch, id))
  if batch and ENDINGS[ending] then count_member(batch, id, ending, job.error) end
end
