#!lua flags=allow-oom
-- Revise ledger entries, each only if it still is what was read.
--
-- own ARGV   of each entry: path, what was read, what it becomes ('' = forget it)
-- returns    1 or 0 (it has changed) for each
local total = (#ARGV - own_args) / 3
local answers = {}
must_take(LEDGER, 'hash', 'HGET', 'HSET', 'HDEL')
for i = 1, total do
  local a = own_args + (i - 1) * 3
  local path, was, becomes = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  if redis.call('HGET', LEDGER, path) ~= was then
    answers[i] = 0
  else
    if becomes == '' then
      redis.call('HDEL', LEDGER, path)
    else
      redis.call('HSET', LEDGER, path, becomes)
    end
    answers[i] = 1
  end
end
return answers
