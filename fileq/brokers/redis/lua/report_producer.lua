#!lua flags=allow-oom
-- Report a producer: replace its information and its lease. Deletes the reports whose lease has ended.
--
-- own KEYS   1 producers
-- own ARGV   1 id, 2 information (JSON), 3 length of the lease in ms; none of them: only the permissions are checked
-- returns    how many reports were deleted
local producers = KEYS[own_keys + 1]
local id, info, ttl = ARGV[own_args + 1], ARGV[own_args + 2], ARGV[own_args + 3]
require_access(producers, 'hash', 'HGETALL', 'HSET', 'HDEL')
if not id then return 0 end

local reports, deleted = redis.call('HGETALL', producers), 0
redis.call('HSET', producers, id, int_text(now + tonumber(ttl)) .. ' ' .. info)
for i = 1, #reports, 2 do
  local ends = tonumber(string.match(reports[i + 1], '^%d+') or 0)
  if reports[i] ~= id and ends <= now then
    deleted = deleted + redis.call('HDEL', producers, reports[i])
  end
end
return deleted
