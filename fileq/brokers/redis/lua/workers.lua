#!lua flags=no-writes
-- List the registered slots: information, how long the heartbeat of each still lasts, which job it holds and since when.
--
-- own ARGV   1 and 2 pattern of processing lists, split at its %s; 3 and 4 pattern of heartbeats, split the same way
-- returns    five values for each slot: its id, its information (JSON), ms until its heartbeat ends (-2 = it has none,
--            -1 = never), raw of its job ('' = none), start time ('0' = unknown)
local processing_before, processing_after, heartbeat_before, heartbeat_after = unpack(ARGV, own_args + 1)
local registry, answers = read('HGETALL', WORKERS), {}
for i = 1, #registry, 2 do
  local slot = registry[i]
  local raw = table.concat(read('LRANGE', processing_before .. slot .. processing_after, 0, -1))
  local id = raw ~= '' and read_id(raw)
  local since = id and read('HMGET', RECORDS .. id, 'started')[1]
  local left = read('PTTL', heartbeat_before .. slot .. heartbeat_after)
  answers[#answers + 1] = { slot, registry[i + 1], left, raw, since or '0' }
end
return answers
