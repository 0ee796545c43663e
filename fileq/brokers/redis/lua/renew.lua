#!lua flags=allow-oom
-- Renew heartbeats, and report to each slot what it really holds.
--
-- own KEYS   of each slot: processing list, heartbeat
-- own ARGV   of each slot: its id, the raw it believes to hold ('' = none)
-- returns    how many slots are registered; for each slot: held, idle, lost, cancel, unexpected or gone; and for an unexpected job its queue number
--            (0 = unknown), raw, id ('' = it has none), start time, 1 if an earlier job of the same file is running, 1 if its
--            batch is cancelled
local slots, lists, heartbeats = {}, {}, {}
for i = 1, (#ARGV - own_args) / 2 do
  slots[i] = ARGV[own_args + 2 * i - 1]
  lists[i], heartbeats[i] = KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i]
end
if #slots == 0 then return { 0 } end
require_permission(heartbeats[1], 'SET') -- the keys of all slots have one pattern
require_strings(heartbeats)
local registered = read('HMGET', WORKERS, unpack(slots))
local is_any_held = read('EXISTS', unpack(lists)) > 0
local answers, raw_of = { read('HLEN', WORKERS) }, {}

local function answer(i)
  if not registered[i] then return { 'gone' } end
  local really, believed = is_any_held and read('LINDEX', lists[i], -1) or '', ARGV[own_args + 2 * i]
  local id = really ~= '' and read_id(really) or nil
  raw_of[heartbeats[i]] = really
  if really ~= believed and believed ~= '' then return { 'lost' } end
  if really ~= believed then
    local was = id and read('HMGET', RECORDS .. id, 'queue', 'started', 'after', 'batch') or {}
    local is_cancelled = was[4] and is_batch_cancelled(was[4], id) or 0
    return {
      'unexpected', queue_number[was[1] or ''] or 0, really, id or '', was[2] or '0', is_blocked(was[3]), is_cancelled,
    }
  end
  if really == '' then return { 'idle' } end
  local was = id and read('HMGET', RECORDS .. id, 'cancel', 'batch') or {}
  local is_wanted = was[1] == '1' or was[2] and is_batch_cancelled(was[2], id) == 1
  return { is_wanted and 'cancel' or 'held' }
end

for i = 1, #slots do answers[i + 1] = answer(i) end
for heartbeat, raw in pairs(raw_of) do redis.call('SET', heartbeat, raw, 'PX', HEARTBEAT_TTL) end
return answers
