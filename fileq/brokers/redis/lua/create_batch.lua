#!lua
-- Create an open batch, as a member of its parent if it has one. A server whose memory is full refuses the call.
--
-- own KEYS   those of require_batch() (prelude/batches.lua); then those of the parent, if it has one
-- own ARGV   1 id, 2 name, 3 parent ('' = none), 4 whether failures are allowed (1 or 0), 5 info; of each callback: its
--            kind, queue, raw and deadline in ms ('' = none)
-- returns    created, taken, or why the parent does not take it: unknown, deep, cancelled or its state
local LOOKED_AT = 10
local id, name, parent_id, allow_failures, info = unpack(ARGV, own_args + 1, own_args + 5)
local key = KEYS[own_keys + 1]
require_batch()
require_permission(ALL_BATCHES, 'ZADD', 'ZCARD', 'ZRANGE', 'ZREM')
require_permission(key, 'EXISTS')
if parent_id ~= '' then
  own_keys = own_keys + #BATCH_KEYS
  require_joining(parent_id)
end
if redis.call('EXISTS', key) == 1 then return 'taken' end

local level, parent = 1, nil
if parent_id ~= '' then
  parent = batch_of(parent_id)
  if not parent then return 'unknown' end
  if not is_batch_open(parent_id) then return parent.is_cancelled == '1' and 'cancelled' or parent.state end
  level = 1 + tonumber(redis.call('HMGET', parent.key, 'level')[1])
  if level > LEVELS_MAX then return 'deep' end
end

redis.call('HSET', key, 'name', name, 'parent', parent_id, 'allow_failures', allow_failures, 'info', info,
  'state', 'open', 'is_cancelled', '0', 'created', NOW, 'touched', NOW, 'sealed', '0', 'finished', '0', 'total', '0',
  'completed', '0', 'dead', '0', 'cancelled', '0', 'deleted', '0', 'fired', '', 'dead_id', '', 'dead_error', '',
  'is_counted', '0', 'level', int_text(level))
for a = own_args + 5, #ARGV - 4, 4 do
  local kind, queue, raw, deadline = unpack(ARGV, a + 1, a + 4)
  redis.call('HSET', key, 'callback:' .. kind, raw, 'queue:' .. kind, queue, 'deadline:' .. kind, deadline)
end
redis.call('ZADD', ALL_BATCHES, NOW, id)
redis.call('ZADD', UNFINISHED_BATCHES, NOW, id)
if parent then
  change_batch(parent, 'total', parent.total + 1)
  change_batch(parent, 'touched', NOW)
  redis.call('SADD', parent.key .. ':children', id)
  write_batches()
end

-- A batch that has expired leaves its id among all batches. Each new batch looks at a few ids, at another place each time.
local offset = now % redis.call('ZCARD', ALL_BATCHES)
for _, other in ipairs(redis.call('ZRANGE', ALL_BATCHES, int_text(offset), int_text(offset + LOOKED_AT - 1))) do
  if redis.call('EXISTS', BATCH .. other) == 0 then
    redis.call('ZREM', ALL_BATCHES, other)
    redis.call('ZREM', UNFINISHED_BATCHES, other)
  end
end
return 'created'
