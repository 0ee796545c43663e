-- The ledger's value of one path: a line `<short signature> <id>` for each version, newest first; then, if one of them
-- has a mark (its inode, the hash of its content), a line `on =<marks>` with a mark for each line above, separated by
-- commas; then a line `on <device>` if the device of the file or a mark is known, or `missing <since_ms> <device>` after
-- a producer did not find the file there. core/job.py describes signatures and marks.
--
-- KEYS, ARGV: see arguments.lua

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

-- The id of the newest job of this version, in one line; nil if the version is unknown.
local function job_of(versions, signature)
  local short, mark = split_signature(signature)
  if not string.find('\n' .. versions, '\n' .. short .. ' ', 1, true) then return nil end
  local marks, n = marks_of(versions), 0
  for known, id in string.gmatch(versions, '([^ \n]+) ([^\n]*)\n') do
    n = n + 1
    if known == short and marks_agree(marks[n] or '', mark) then return id end
  end
end

local function is_known(versions, signature)
  return versions and job_of(versions, signature) ~= nil
end

local function in_one_line(id)
  return (string.gsub(id, '[%%\n]', { ['%'] = '%25', ['\n'] = '%0A' }))
end

local function from_one_line(line)
  return (string.gsub(string.gsub(line, '%%0A', '\n'), '%%25', '%%'))
end

-- A field of the record of this job, whose id is in one line. By pcall: another program may keep another type under this
-- key, and that must not stop a call.
local function field_of(line, name)
  return redis.pcall('HMGET', RECORDS .. from_one_line(line), name)[1]
end

-- The ids of the jobs in this value but this one, newest first, one a line; nil if there is none. A record keeps them
-- as `after`. The value has one job of a version: those before it that have not ended are in its record.
local function jobs_before(versions, id, signature)
  local most, ids, is_listed = 16, {}, { [in_one_line(id)] = true }
  local function add(other)
    if not is_listed[other] and #ids < most then ids[#ids + 1], is_listed[other] = other, true end
  end
  for known, other in string.gmatch(versions, '(%S+) ([^\n]*)\n') do
    if known ~= 'on' and known ~= 'missing' then add(other) end
  end
  local same = job_of(versions, signature)
  for other in string.gmatch(same and field_of(same, 'after') or '', '[^\n]+') do
    if UNFINISHED[field_of(other, 'state')] then add(other) end
  end
  return #ids > 0 and table.concat(ids, '\n') or nil
end

-- Before an id in `after`: not only while that job runs, but until it has ended. No id in one line begins like this.
local ENDED = '%ended '

-- 1 if a job that a record names in `after` is running, or one that must have ended is unfinished; else 0.
local function is_blocked(after)
  for line in string.gmatch(after or '', '[^\n]+') do
    local is_awaited = string.sub(line, 1, #ENDED) == ENDED
    local state = field_of(is_awaited and string.sub(line, #ENDED + 1) or line, 'state')
    if state == 'running' or is_awaited and UNFINISHED[state] then return 1 end
  end
  return 0
end

-- `versions` is the value that the caller has read.
local function remember_version(path, versions, signature, device, id)
  local short, mark = split_signature(signature)
  local depth, lines, marks, seen_on = 8, { short .. ' ' .. in_one_line(id) }, { mark }, device
  local old_marks, old = marks_of(versions or ''), 0
  for line in string.gmatch(versions or '', '[^\n]+') do
    local known = string.match(line, '^%S+')
    if known == 'on' or known == 'missing' then
      seen_on = device ~= '' and device or string.match(line, '%S*$')
    else
      old = old + 1
      local old_mark = old_marks[old] or ''
      if #lines < depth and not (known == short and marks_agree(old_mark, mark)) then
        lines[#lines + 1], marks[#marks + 1] = line, old_mark
      end
    end
  end
  local marked = string.gsub(table.concat(marks, ','), ',+$', '')
  if marked ~= '' then lines[#lines + 1] = 'on =' .. marked end
  if seen_on ~= '' or marked ~= '' then lines[#lines + 1] = 'on ' .. seen_on end
  redis.call('HSET', LEDGER, path, table.concat(lines, '\n') .. '\n')
end
