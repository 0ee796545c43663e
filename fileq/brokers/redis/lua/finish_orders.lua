#!lua flags=allow-oom
-- Finish orders: remove each, and write where the file of the completed or dead job is now.
--
-- own KEYS   1 orders, then the record of each job
-- own ARGV   of each job: its id, the path ('' = stays as it is)
-- returns    for each: 1, or 0 if the job is not completed or dead
local orders, records = KEYS[own_keys + 1], own_keys + 1
local total = #KEYS - records
local answers, ids = {}, {}
require_access(orders, 'hash', 'HDEL')
require_record_permissions()
for i = 1, total do require_type(KEYS[records + i], 'hash') end

for i = 1, total do
  local record, id, path = KEYS[records + i], ARGV[own_args + 2 * i - 1], ARGV[own_args + 2 * i]
  local state = redis.call('HMGET', record, 'state')[1]
  answers[i] = (state == 'completed' or state == 'dead') and 1 or 0
  if answers[i] == 1 and path ~= '' then redis.call('HSET', record, 'moved_to', path) end
  ids[i] = id
end
if total > 0 then redis.call('HDEL', orders, unpack(ids)) end
return answers
