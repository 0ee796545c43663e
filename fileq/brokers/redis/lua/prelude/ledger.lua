-- The ledger's value of one path: a line `<short signature> <id>` for each version, newest first; then, if one of them
-- has a mark (its inode, the hash of its content), a line `on =<marks>` with a mark for each line above, separated by
-- commas; then a line `on <device>` if the device of the file or a mark is known, or `missing <since_ms> <device>` after
-- a producer did not find the file there. core/signature.py describes signatures and marks.
--
-- KEYS, ARGV: see arguments.lua

local LEDGER_DEPTH = 8

-- The short form and the mark ('' = none) of a signature.
local function split_signature(signature)
  local before = string.match(signature, '^(.*)%-c[0-9a-f]+$') or signature
  local short = string.match(before, '^(.*)%-i[0-9]+$') or before
  return short, string.sub(signature, #short + 2)
end

-- Two versions of the same short form are the same unless their hashes differ or, if one has no hash, their inodes do.
local function marks_agree(one, other)
  local a, b = string.match(one, 'c([0-9a-f]+)$'), string.match(other, 'c([0-9a-f]+)$')
  if not (a and b) then a, b = string.match(one, '^i([0-9]+)'), string.match(other, '^i([0-9]+)') end
  return not (a and b) or a == b
end

-- The marks in a value, in the order of its versions; an empty table if it has none.
local function marks_of(versions)
  local marks = {}
  local line = string.match('\n' .. versions, '\non =([^\n]*)\n')
  for mark in string.gmatch(line and line .. ',' or '', '([^,]*),') do marks[#marks + 1] = mark end
  return marks
end

local function is_known(versions, signature)
  if not versions then return false end
  local short, mark = split_signature(signature)
  if not string.find('\n' .. versions, '\n' .. short .. ' ', 1, true) then return false end
  if mark == '' then return true end
  local marks, n = marks_of(versions), 0
  for known in string.gmatch(versions, '([^ \n]+) [^\n]*\n') do
    n = n + 1
    if known == short and marks_agree(marks[n] or '', mark) then return true end
  end
  return false
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
  local short, mark = split_signature(signature)
  local lines, marks, seen_on = { short .. ' ' .. in_one_line(id) }, { mark }, device
  local old_marks, old = marks_of(versions or ''), 0
  for line in string.gmatch(versions or '', '[^\n]+') do
    local known = string.match(line, '^%S+')
    if known == 'on' or known == 'missing' then
      seen_on = device ~= '' and device or string.match(line, '%S*$')
    else
      old = old + 1
      local old_mark = old_marks[old] or ''
      if #lines < LEDGER_DEPTH and not (known == short and marks_agree(old_mark, mark)) then
        lines[#lines + 1], marks[#marks + 1] = line, old_mark
      end
    end
  end
  local marked = string.gsub(table.concat(marks, ','), ',+$', '')
  if marked ~= '' then lines[#lines + 1] = 'on =' .. marked end
  if seen_on ~= '' or marked ~= '' then lines[#lines + 1] = 'on ' .. seen_on end
  redis.call('HSET', LEDGER, path, table.concat(lines, '\n') .. '\n')
end
