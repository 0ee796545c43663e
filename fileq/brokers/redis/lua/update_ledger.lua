#!lua flags=allow-oom
-- Update ledger entries, each only if it still is what the caller read.
--
-- own ARGV   of each entry: path, what was read, what it becomes ('' = remove it)
-- returns    for each: 1, or 0 if it has changed
local total = (#ARGV - own_args) / 3
local answers = {}
require_access(LEDGER, 'hash', 'HGET', 'HSET', 'HDEL')
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
