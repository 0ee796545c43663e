#!lua flags=no-writes
-- Look at every registered slot: what is said of it, whether it lives, what it is on and since when.
--
-- own ARGV   1 processing list pattern, 2 heartbeat pattern (each cut at its %s into two arguments, so 1 to 4)
-- returns    of each slot five values: its id, what is said of it (JSON), 1 = it has a heartbeat, the element it holds
--            ('' = none), since when ('0' = nobody knows)
local registry, answers = read('HGETALL', WORKERS), {}
for i = 1, #registry, 2 do
  local slot = registry[i]
  local raw = table.concat(read('LRANGE', ARGV[own_args + 1] .. slot .. ARGV[own_args + 2], 0, -1))
  local id = raw ~= '' and id_in(raw)
  local since = id and read('HMGET', RECORDS .. id, 'started')[1]
  local is_alive = read('EXISTS', ARGV[own_args + 3] .. slot .. ARGV[own_args + 4])
  answers[#answers + 1] = { slot, registry[i + 1], is_alive, raw, since or '0' }
end
return answers
