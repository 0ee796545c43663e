#!lua flags=allow-oom
-- Forget unique keys whose jobs have ended or have no record.
--
-- own KEYS   1 the unique keys
-- own ARGV   of each: the key, the id that the caller has read
-- returns    how many
local unique, removed = KEYS[own_keys + 1], 0
require_access(unique, 'hash', 'HGET', 'HDEL')
require_permission(RECORDS .. 'any', 'HMGET')
for a = own_args + 1, #ARGV, 2 do
  if redis.call('HGET', unique, ARGV[a]) == ARGV[a + 1] and not key_holder(unique, ARGV[a]) then
    removed = removed + redis.call('HDEL', unique, ARGV[a])
  end
end
return removed
