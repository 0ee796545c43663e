#!lua flags=allow-oom
-- Take a free lease, or renew it. Every worker asks this now and then, so this script gets nothing of the
-- prelude, not even its keys and arguments.
--
-- KEYS       1 the lease
-- ARGV       1 who asks, 2 how long it lasts in ms (0 = give it back), 3 from whom to take it ('' = it must be free)
-- returns    who has the lease now ('' = it is free)
local lease, caller, lasts, gone = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local holder = redis.call('GET', lease)
-- A lease that lasts longer than the caller asks for does not count: the server's clock has stepped back, and the holder
-- may be dead.
local counts = lasts == '0' or redis.call('PTTL', lease) <= tonumber(lasts)
if holder and holder ~= caller and holder ~= gone and counts then return holder end
if lasts == '0' then
  redis.call('DEL', lease)
  return ''
end
redis.call('SET', lease, caller, 'PX', lasts)
return caller
