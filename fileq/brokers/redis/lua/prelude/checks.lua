-- Checks before the first write: types of keys and permissions of the user. A command that is forbidden halfway would
-- leave half a change.
--
-- KEYS, ARGV: see arguments.lua

local function require_permission(key, ...)
  for i = 1, select('#', ...) do
    local command = select(i, ...)
    if not redis.acl_check_cmd(command, key) then refuse('NOPERM this user may not ' .. command .. ' ' .. key) end
  end
end

local function require_type(key, kind)
  require_permission(key, 'TYPE')
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    refuse('WRONGTYPE ' .. key .. ' is a ' .. found .. ' where fileq keeps a ' .. kind)
  end
end

-- For a key that will be written: its type, and the permission for every command that will be run on it.
local function require_access(key, kind, ...)
  require_type(key, kind)
  require_permission(key, ...)
end

-- A read whose error names the key; the error of Redis does not.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    require_permission(key, command)
    refuse('WRONGTYPE ' .. key .. ' is a ' .. redis.call('TYPE', key).ok .. ' where fileq keeps something else')
  end
  return reply
end

-- One check for all records: they share a prefix. Their types are checked when they are read, before any write.
local function require_record_permissions()
  require_permission(RECORDS .. 'any', 'HMGET', 'HSET', 'HINCRBY', 'HDEL', 'PEXPIRE', 'PERSIST', 'DEL')
end

-- Many keys for the price of one read: TYPE is needed only where MGET found nothing.
local function require_strings(keys)
  if #keys == 0 then return end
  require_permission(keys[1], 'MGET')
  for i, value in ipairs(redis.call('MGET', unpack(keys))) do
    if not value then require_type(keys[i], 'string') end
  end
end

local function require_queues(...)
  for i = 1, QUEUES do require_access(queue_key[i], 'list', ...) end
end
