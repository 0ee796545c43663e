#!lua
-- Enqueue one job that is due at once, has neither a version of a file nor a unique key, and so needs no permit: record
-- and queue in one step. It does what enqueue.lua does with such a job. Reading the keys and arguments that all scripts
-- share takes longer than enqueueing, so this script has its own.
--
-- Its writes check the types of their keys. A count is undone if a later write is refused. There is no key of the
-- record's name, so writing the record can't fail.
--
-- KEYS       1 record, 2 queue, 3 stats
-- ARGV       1 now in ms ('' = the server's time), 2 raw, 3 name of the queue, 4 events channel, 5 event, 6 retention of
--            the hourly counters in ms
-- returns    now in ms = enqueued, 0 = there is a job of this id
local record, queue, stats = KEYS[1], KEYS[2], KEYS[3]
local _, raw, name, channel, event, retention = unpack(ARGV)
local at, hour = int_text(now), stats .. ':' .. int_text(math.floor(now / 3600000))
require_permission(record, 'EXISTS', 'HSET')
require_permission(queue, 'LPUSH')
require_permission(stats, 'HINCRBY')
require_permission(hour, 'HINCRBY', 'PEXPIRE')
if redis.call('EXISTS', record) == 1 then
  require_type(record, 'hash')
  return 0
end

local function checked(reply, key, kind)
  if type(reply) ~= 'table' then return reply end
  require_type(key, kind)
  error(reply)
end

local function undo(key, counted)
  if counted == 1 and redis.acl_check_cmd('HDEL', key, 'produced') then
    redis.call('HDEL', key, 'produced')
  else
    redis.call('HINCRBY', key, 'produced', '-1')
  end
end

local counted = checked(redis.pcall('HINCRBY', stats, 'produced', '1'), stats, 'hash')
local counted_hourly = redis.pcall('HINCRBY', hour, 'produced', '1')
local pushed = type(counted_hourly) == 'number' and redis.pcall('LPUSH', queue, raw)
if type(pushed) ~= 'number' then
  undo(stats, counted)
  checked(counted_hourly, hour, 'hash')
  undo(hour, counted_hourly)
  checked(pushed, queue, 'list')
end
-- The first count of an hour may have made the key. Every script that counts gives it its end.
if counted_hourly == 1 then redis.call('PEXPIRE', hour, retention) end
redis.call('HSET', record, 'state', 'pending', 'json', raw, 'queue', name, 'created', at, 'queued', '1')
-- To publish costs less than to look for subscribers. The time replaces the 0 at the end of the event, as in add_event().
redis.pcall('PUBLISH', channel, string.sub(event, 1, -3) .. at .. '}')
return now
