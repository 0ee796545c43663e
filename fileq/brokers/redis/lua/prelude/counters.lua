-- Counters: collected while a script runs, written once at its end.
--
-- KEYS, ARGV: see arguments.lua

local counts = {}
local function count(name, by)
  counts[name] = (counts[name] or 0) + (by or 1)
end

local function require_counters()
  require_access(STATS, 'hash', 'HINCRBY')
  require_access(HOUR, 'hash', 'HINCRBY', 'PEXPIRE')
end

local function write_counters()
  if next(counts) == nil then return end
  for name, by in pairs(counts) do
    if by ~= 0 then
      redis.call('HINCRBY', STATS, name, by)
      redis.call('HINCRBY', HOUR, name, by)
    end
  end
  redis.call('PEXPIRE', HOUR, RETENTION)
end
