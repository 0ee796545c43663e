#!lua flags=allow-oom
-- Take or renew the watch of these queues, and look whether one of them that is not paused holds a job. Of all workers
-- with the same queues one has the watch: the server reports to it each change of what this script reads. A waiter asks
-- at least once a second. So this script gets nothing of the prelude, not even its keys and arguments.
--
-- KEYS       1 the watch, 2 paused, then the queues
-- ARGV       1 who asks, 2 how long the watch lasts in ms, then the names of the queues
-- returns    1 = the caller has the watch; 1 = there may be work
local watch, paused = KEYS[1], KEYS[2]
local function run(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err or reply.ok then return reply end
  if redis.acl_check_cmd(command, key, ...) then error(reply) end
  error({ err = 'NOPERM this user may not ' .. command .. ' ' .. key })
end
local holder = run('GET', watch)
local is_mine = not holder or holder == ARGV[1]
if is_mine then run('SET', watch, ARGV[1], 'PX', ARGV[2]) end
local has_work = 0
for i = 3, #KEYS do
  -- Both are read of each queue, so that the server reports changes of both.
  local is_paused = run('SISMEMBER', paused, ARGV[i]) == 1
  if run('LLEN', KEYS[i]) > 0 and not is_paused then has_work = 1 end
end
return { is_mine and 1 or 0, has_work }
