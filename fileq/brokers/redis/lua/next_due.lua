#!lua flags=no-writes
-- Read when the next job and the next schedule are due, when to look at the first deadline, and how many cancellations
-- of running jobs were requested. A scheduler asks this many times a second, and promotes only if something is due. So
-- this script gets nothing of the prelude, not even its keys and arguments.
--
-- KEYS       1 scheduled, 2 schedules, 3 cancels, 4 deadlines
-- ARGV       1 now in ms ('' = the server's time)
-- returns    the due time of the next job ('' = none waits); now; the next slot of a schedule ('' = none); how
--            many requests; when to look at the first deadline ('' = there is none)
local scheduled, schedules, cancels, deadlines = unpack(KEYS)
local time = ARGV[1]
if time == '' then
  local parts = redis.call('TIME')
  time = string.format('%d', parts[1] * 1000 + math.floor(parts[2] / 1000))
end
local due = redis.call('ZRANGE', scheduled, '0', '0', 'WITHSCORES')
local fire = redis.call('ZRANGE', schedules, '0', '0', 'WITHSCORES')
local look = redis.call('ZRANGE', deadlines, '0', '0', 'WITHSCORES')
return { due[2] or '', time, fire[2] or '', tonumber(redis.call('GET', cancels)) or 0, look[2] or '' }
