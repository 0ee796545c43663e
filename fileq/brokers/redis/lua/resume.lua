#!lua flags=allow-oom
-- End the pause of a queue, and wake a waiter for what it holds. The holder of the watch hears of it, too; but a worker
-- with other queues may be the only one that takes these jobs.
--
-- own KEYS   the list of the queue's tokens
-- own ARGV   1 the name of the queue
-- returns    1
local tokens = KEYS[own_keys + 1]
require_access(PAUSED, 'set', 'SREM')
require_access(tokens, 'list', 'LLEN', 'LPUSH', 'PEXPIRE')
add_tokens(tokens, 1)
redis.call('SREM', PAUSED, ARGV[own_args + 1])
return 1
