#!lua flags=allow-oom
-- Relocate files: write where the file of each completed or dead job is now.
--
-- own KEYS   the record of each job
-- own ARGV   of each job: the path
-- returns    for each: 1, or 0 if the job is not completed or dead
local total = #KEYS - own_keys
local answers = {}
require_record_permissions()
for i = 1, total do require_type(KEYS[own_keys + i], 'hash') end

for i = 1, total do
  local record = KEYS[own_keys + i]
  local state = redis.call('HMGET', record, 'state')[1]
  answers[i] = (state == 'completed' or state == 'dead') and 1 or 0
  if answers[i] == 1 then redis.call('HSET', record, 'moved_to', ARGV[own_args + i]) end
end
return answers
