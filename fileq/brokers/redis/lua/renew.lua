#!lua flags=allow-oom
-- Renew heartbeats, and report to each slot what it really holds.
--
-- own KEYS   of each slot: processing list, heartbeat
-- own ARGV   of each slot: its id, the raw it believes to hold ('' = none)
-- returns    for each slot: held, idle, lost, cancel, unexpected or gone; and for an unexpected job its queue number
--            (0 = unknown), raw, id ('' = it has none), start time, 1 if an earlier job of the same file is running, 1 if its
--            batch is cancelled
local total = (#ARGV - own_args) / 2
local answers, raw_of = {}, {}
for i = 1, total do
  local slot, believed = ARGV[own_args + 2 * i - 1], ARGV[own_args + 2 * i]
  local processing, heartbeat = KEYS[own_keys + 2 * i - 1], KEYS[own_keys + 2 * i]
  require_access(heartbeat, 'string', 'SET')
  if read('HEXISTS', WORKERS, slot) == 0 then
    answers[i] = { 'gone' }
  else
    local really = read('LINDEX', processing, -1) or ''
    local id = really ~= '' and read_id(really) or nil
    raw_of[heartbeat] = really
    if really ~= believed and believed ~= '' then
      answers[i] = { 'lost' }
    elseif really ~= believed then
      local was = id and read('HMGET', RECORDS .. id, 'queue', 'started', 'after', 'batch') or {}
      local is_cancelled = was[4] and is_batch_cancelled(was[4]) or 0
      answers[i] = {
        'unexpected', queue_number[was[1] or ''] or 0, really, id or '', was[2] or '0', is_blocked(was[3]), is_cancelled,
      }
    elseif really == '' then
      answers[i] = { 'idle' }
    else
      local was = id and read('HMGET', RECORDS .. id, 'cancel', 'batch') or {}
      local is_wanted = was[1] == '1' or was[2] and is_batch_cancelled(was[2]) == 1
      answers[i] = { is_wanted and 'cancel' or 'held' }
    end
  end
end
for heartbeat, raw in pairs(raw_of) do redis.call('SET', heartbeat, raw, 'PX', HEARTBEAT_TTL) end
return answers
