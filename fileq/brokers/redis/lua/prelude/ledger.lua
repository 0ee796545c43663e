-- The ledger's value of one path: a line `<signature> <id>` for each version, newest first; then a line `on <device>` if
-- the device of the file is known, or `missing <since_ms> <device>` after a producer did not find the file there.
--
-- KEYS, ARGV: see arguments.lua

local LEDGER_DEPTH = 8

local function is_known(versions, signature)
  return versions and string.find('\n' .. versions, '\n' .. signature .. ' ', 1, true) ~= nil
end

local function remember_version(path, signature, device, id)
  local one_line = string.gsub(id, '[%%\n]', { ['%'] = '%25', ['\n'] = '%0A' })
  local lines, n, seen_on = { signature .. ' ' .. one_line }, 1, device
  for line in string.gmatch(redis.call('HGET', LEDGER, path) or '', '[^\n]+') do
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
