#!lua flags=allow-oom
-- Look at jobs of the index of deadlines: return those that wait although their deadline has passed, and write when to
-- look at each again. Jobs that have ended leave the index.
--
-- own ARGV   1 how many at most, 2 bytes of jobs to return (the last job may exceed them), 3 ms after which a job that
--            runs is looked at again, 4 the same for one that is returned
-- returns    of each job: id, queue number, raw; now
local limit, left = ARGV[own_args + 1], tonumber(ARGV[own_args + 2])
local running_look, returned_look = tonumber(ARGV[own_args + 3]), tonumber(ARGV[own_args + 4])
local rows = {}
require_access(DEADLINES, 'zset', 'ZADD', 'ZREM')
require_record_permissions()
for _, id in ipairs(read('ZRANGEBYSCORE', DEADLINES, '-inf', NOW, 'LIMIT', 0, limit)) do
  if left <= 0 then break end
  -- By pcall: another program may keep another type under this key, and must not stop the other jobs.
  local was = redis.pcall('HMGET', RECORDS .. id, 'state', 'json', 'queue', 'batch', 'deadline')
  local state, raw, number, deadline = was[1], was[2], queue_number[was[3] or ''], tonumber(was[5])
  if not deadline or not UNFINISHED[state] then
    redis.call('ZREM', DEADLINES, id)
  else
    local again = running_look
    if deadline > now then
      again = math.min(deadline - now, LONGEST_LOOK)
    elseif state ~= 'running' and number and not (was[4] and is_batch_cancelled(was[4], id) == 1) then
      again, left = returned_look, left - #raw
      rows[#rows + 1] = { id, number, raw }
    end
    redis.call('ZADD', DEADLINES, int_text(now + again), id)
  end
end
return { rows, now }
