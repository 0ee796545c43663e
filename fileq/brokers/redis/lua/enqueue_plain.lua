#!lua
-- Enqueue one job that is due at once, has neither a version of a file nor a unique key, and so needs no permit: record
-- and queue in one step. It does what enqueue.lua does with such a job. Reading the keys and arguments that all scripts
-- share takes longer than enqueueing, so this script has its own.
--
-- KEYS       1 record, 2 queue, 3 stats
-- ARGV       1 now in ms ('' = the server's time), 2 raw, 3 name of the queue, 4 events channel, 5 event, 6 retention of
--            the hourly counters in ms
-- returns    1 = enqueued, 0 = there is a job of this id
local record, queue, stats, raw = KEYS[1], KEYS[2], KEYS[3], ARGV[2]
local at, hour = int_text(now), stats .. ':' .. int_text(math.floor(now / 3600000))
require_permission(record, 'EXISTS', 'HSET')
require_permission(queue, 'LPUSH')
require_permission(stats, 'HINCRBY')
require_permission(hour, 'HINCRBY', 'PEXPIRE')
if redis.call('EXISTS', record) == 1 then
  require_type(record, 'hash')
  return 0
end
require_type(queue, 'list')
require_type(stats, 'hash')
require_type(hour, 'hash')

redis.call('HSET', record, 'state', 'pending', 'json', raw, 'queue', ARGV[3], 'created', at, 'queued', '1')
redis.call('LPUSH', queue, raw)
redis.call('HINCRBY', stats, 'produced', '1')
redis.call('HINCRBY', hour, 'produced', '1')
redis.call('PEXPIRE', hour, ARGV[6])
-- To publish costs less than to look for subscribers. The time replaces the 0 at the end of the event, as in add_event().
redis.pcall('PUBLISH', ARGV[4], string.sub(ARGV[5], 1, -3) .. at .. '}')
return 1
