-- Follow-ups and outputs: what a few settlements, cancellations and schedules carry.
--
-- own KEYS   of each settlement, cancellation or schedule: the unique keys; the record of each follow-up; the key of
--            each output
-- own ARGV   of each: the number of follow-ups; of each follow-up the arguments of entries.lua; the number of outputs;
--            the outputs as JSON ('' = none)
--
-- KEYS, ARGV: see common.lua

-- Read the follow-ups and outputs of the next settlement, cancellation or schedule; own_keys and own_args move on.
local function next_extras()
  local extras = { unique = KEYS[own_keys + 1], keys = own_keys + 1, args = own_args + 1 }
  extras.total = tonumber(ARGV[own_args + 1])
  own_keys, own_args = extras.keys + extras.total, extras.args + extras.total * ENTRY_ARGS
  extras.made, extras.outputs, extras.json = own_keys, tonumber(ARGV[own_args + 1]), ARGV[own_args + 2]
  own_keys, own_args = own_keys + extras.outputs, own_args + 2
  return extras
end

-- Check what add_follow_ups() and keep_outputs() need, before anything is written.
local are_entries_checked = false
local function require_extras(extras)
  if extras.total > 0 then
    if not are_entries_checked then require_entries(extras.unique) end
    are_entries_checked = true
    for i = 1, extras.total do
      local a = extras.args + (i - 1) * ENTRY_ARGS
      local batch = ARGV[a + ENTRY.batch]
      require_type(KEYS[extras.keys + i], 'hash')
      require_deadline(a)
      if joining and batch ~= '' then joining.require(batch) end
    end
  end
  if extras.outputs > 0 then require_permission(KEYS[extras.made + 1], 'SET') end
  for i = 1, extras.outputs do require_type(KEYS[extras.made + i], 'string') end
end

-- Whether the job whose arguments follow ARGV[a] must not be enqueued: its id has a record, or an unfinished job has its
-- unique key. Returns the id of that job, or nil.
local function existing_job(record, a, unique)
  if has_record(record, ARGV[a + ENTRY.origin]) then return ARGV[a + ENTRY.id] end
  local key = ARGV[a + ENTRY.key]
  return key ~= '' and key_holder(unique, key) or nil
end

local function add_follow_up(record, a, unique, awaited, follows)
  local path = ARGV[a + ENTRY.path]
  add_job(record, a, path ~= '' and redis.call('HGET', LEDGER, path), unique, awaited, follows)
end

-- Enqueue the follow-ups that are no duplicates, and keep their ids in the record of the job they follow (nil = it has
-- none). `follows`: see add_job().
local function add_follow_ups(parent, extras, follows)
  local ids = {}
  for i = 1, extras.total do
    local record, a = KEYS[extras.keys + i], extras.args + (i - 1) * ENTRY_ARGS
    if not existing_job(record, a, extras.unique) then
      add_follow_up(record, a, extras.unique, nil, follows)
      ids[#ids + 1] = in_one_line(ARGV[a + ENTRY.id])
    end
  end
  if not parent or #ids == 0 then return end
  local kept, lines = 200, {}
  for line in string.gmatch(redis.call('HMGET', parent, 'follow_ups')[1] or '', '[^\n]+') do lines[#lines + 1] = line end
  for _, id in ipairs(ids) do lines[#lines + 1] = id end
  redis.call('HSET', parent, 'follow_ups', table.concat(lines, '\n', math.max(1, #lines - kept + 1)))
end

local function keep_outputs(record, id, extras)
  if extras.outputs == 0 then return end
  redis.call('HSET', record, 'outputs', extras.json)
  for i = 1, extras.outputs do redis.call('SET', KEYS[extras.made + i], id, 'PX', HISTORY_TTL) end
end

-- The hooks of settlements.lua for a script whose settlements may carry follow-ups or outputs.
local function read_follow_ups(job, flags)
  if string.find(flags, 'f', 1, true) then job.extras = next_extras() end
end

local function require_follow_ups(jobs)
  for _, job in ipairs(jobs) do
    if job.extras then require_extras(job.extras) end
  end
end

local function keep_follow_ups(job, follows)
  if not job.extras then return end
  keep_outputs(job.record, string.sub(job.record, #RECORDS + 1), job.extras)
  add_follow_ups(not job.has_no_record and job.record or nil, job.extras, follows)
end
