#!lua flags=allow-oom
-- Wake another waiter: the caller takes no jobs for now. Gives the watch back if the caller has it.
--
-- KEYS       1 the watch, 2 the list to which the token goes
-- ARGV       1 who hands over, 2 how long the token lasts in ms
-- returns    1
local watch, tokens = KEYS[1], KEYS[2]
if redis.call('GET', watch) == ARGV[1] then redis.call('DEL', watch) end
if redis.call('LLEN', tokens) == 0 then redis.call('LPUSH', tokens, '1') end
redis.call('PEXPIRE', tokens, ARGV[2])
return 1
