-- The ledger's value of one path: a line `<signature> <id>` for each version, newest first; then a line `on <device>` if
-- the device of the file is known, or `missing <since_ms> <device>` after a producer did not find the file there.
--
-- KEYS, ARGV: see common.lua

-- A signature without its inode and hash, and these two; nil for one that it lacks. core/job.py describes signatures.
local function split_signature(signature)
  local before, content = string.match(signature, '^(.*)%-c([0-9a-f]+)$')
  local short, inode = string.match(before or signature, '^(.*)%-i([0-9]+)$')
  return short or before or signature, inode, content
end

-- As in core/job.py.
local function is_same_version(one, other)
  if one == other then return true end
  local short, inode, content = split_signature(one)
  local other_short, other_inode, other_content = split_signature(other)
  if short ~= other_short then return false end
  if content and other_content then return content == other_content end
  return not (inode and other_inode) or inode == other_inode
end

-- The id of the newest job of this version, in one line; nil if the version is unknown.
local function job_of(versions, signature)
  for known, id in string.gmatch(versions, '(%S+) ([^\n]*)\n') do
    if is_same_version(known, signature) then return id end
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
  local depth, lines, seen_on = 8, { signature .. ' ' .. in_one_line(id) }, device
  for line in string.gmatch(versions or '', '[^\n]+') do
    local known = string.match(line, '^%S+')
    if known == 'on' or known == 'missing' then
      if device == '' then seen_on = string.match(line, '%S*$') end
    elseif #lines < depth and not is_same_version(known, signature) then
      lines[#lines + 1] = line
    end
  end
  if seen_on ~= '' then lines[#lines + 1] = 'on ' .. seen_on end
  redis.call('HSET', LEDGER, path, table.concat(lines, '\n') .. '\n')
end
