-- The ledger's value of one path: a line `<signature> <id>` for each version, newest first; then a line `on <device>` if
-- the device of the file is known, or `missing <since_ms> <device>` after a producer did not find the file there.
--
-- KEYS, ARGV: see arguments.lua

local LEDGER_DEPTH = 8

local function is_known(versions, signature)
  return versions and string.find('\n' .. versions, '\n' .. signature .. ' ', 1, true) ~= nil
end

local function in_one_line(id)
  return (string.gsub(id, '[%%\n]', { ['%'] = '%25', ['\n'] = '%0A' }))
end

-- The ids of the jobs in this value but this one, newest first, one a line; nil if there is none. A record keeps them
-- as `after`.
local function jobs_before(versions, id)
  local ids, is_listed = {}, { [in_one_line(id)] = true }
  for known, other in string.gmatch(versions, '(%S+) ([^\n]*)\n') do
    if known ~= 'on' and known ~= 'missing' and not is_listed[other] then
      ids[#ids + 1], is_listed[other] = other, true
    end
  end
  return #ids > 0 and table.concat(ids, '\n') or nil
end

-- 1 if a job that a record names in `after` is running, else 0.
local function is_blocked(after)
  for line in string.gmatch(after or '', '[^\n]+') do
    local id = string.gsub(string.gsub(line, '%%0A', '\n'), '%%25', '%%')
    -- By pcall: another program may keep another type under this key, and that must not stop the claim.
    if redis.pcall('HMGET', RECORDS .. id, 'state')[1] == 'running' then return 1 end
  end
  return 0
end

-- `versions` is the value that the caller has read.
local function remember_version(path, versions, signature, device, id)
  local lines, n, seen_on = { signature .. ' ' .. in_one_line(id) }, 1, device
  for line in string.gmatch(versions or '', '[^\n]+') do
    local known = string.match(line, '^%S+')
    if known == 'on' or known == 'missing' then
      seen_on = device ~= '' and device or string.match(line, '%S*$')
    elseif n < LEDGER_DEPTH and known ~= signature then
      n = n + 1
      lines[n] = line
    end
  end
  if seen_on ~= '' then lines[n + 1] = 'on ' .. seen_on end
  redis.call('HSET', LEDGER, path, table.concat(lines, '\n') .. '\n')
end
