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
  local key, id = ARGV[a], ARGV[a + 1]
  if redis.call('HGET', unique, key) == id and not key_holder(unique, key) then
    removed = removed + redis.call('HDEL', unique, key)
  end
end
return removed
