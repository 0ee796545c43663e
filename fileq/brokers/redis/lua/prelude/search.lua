-- Searches in lists of any length. Redis finds an element of a list only by comparing, 0.1 µs each, and one call must not
-- block the server. So one call searches windows of lists. Its caller reads a list page by page, sees where the jobs
-- are, and names the window (redis/list_search.py). The list may have changed since, so a script trusts only its own
-- look at the window. A job that is not in the window is `far`, unless the window is the whole list.
--
-- own ARGV   1 number of windows; of each: number of its queue (0 = the dead-letter list), where it begins, counted from
--            the tail (the old end, 0 = the last element), its size. A short list is always searched as a whole.
--
-- KEYS, ARGV: see arguments.lua

local SHORT, NEAR, FAR = 1000, 250, -1 -- elements
local windows, window_of = {}, {}

-- Of copies with the same bytes the oldest is found first, or the newest.
local function open_window(list, first, size, is_newest_first)
  local length = read('LLEN', list)
  if length <= SHORT then first, size = 0, length end
  local beyond = math.min(first + size, length)
  local raws = beyond > first and read('LRANGE', list, int_text(-beyond), int_text(-first - 1)) or {}
  local offset_of, next_copy = {}, {}
  local from, to, step = 1, #raws, 1
  if is_newest_first then from, to, step = #raws, 1, -1 end
  for i = from, to, step do
    local offset = beyond - i
    next_copy[offset], offset_of[raws[i]] = offset_of[raws[i]], offset
  end
  return {
    list = list, length = length, is_whole = first == 0 and beyond == length, furthest = -1, offset_of = offset_of,
    next_copy = next_copy, taken = {},
  }
end

-- Read the windows; own_args moves on.
local function open_windows(is_newest_first)
  local total = tonumber(ARGV[own_args + 1])
  for i = 1, total do
    local a = own_args + 3 * i - 2
    local list = queue_key[tonumber(ARGV[a + 1])] or DEAD
    windows[i] = open_window(list, tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), is_newest_first)
    window_of[list] = windows[i]
  end
  own_args = own_args + 1 + 3 * total
end

-- Where these bytes are, counted from the tail; nil if they are not in the list; FAR if they may be outside the window.
local function find(list, raw)
  local window = window_of[list]
  if not window then return FAR end
  local offset = window.offset_of[raw]
  if offset then
    window.furthest = math.max(window.furthest, offset)
    return offset
  end
  return not window.is_whole and FAR or nil
end

-- Take what was found at this offset: remove_taken() removes it.
local function take(list, raw, offset)
  local window = window_of[list]
  window.taken[#window.taken + 1], window.offset_of[raw] = offset, window.next_copy[offset]
end

-- Remove what was taken, in one walk from the nearer end: each element is first replaced by a text that no other element
-- equals. Nothing may be pushed to these lists between open_windows() and this.
local function remove_taken()
  for _, window in ipairs(windows) do
    local list, taken, mark = window.list, window.taken, nil
    local nearest, furthest = window.length, 0
    for _, offset in ipairs(taken) do
      nearest, furthest = math.min(nearest, offset), math.max(furthest, offset)
      local index = int_text(-offset - 1)
      mark = mark or '\0removed ' .. redis.sha1hex(NOW .. redis.call('LINDEX', list, index))
      redis.call('LSET', list, index, mark)
    end
    local is_tail_nearer = furthest < window.length - nearest
    if mark then redis.call('LREM', list, is_tail_nearer and -#taken or #taken, mark) end
  end
end

-- For each window, where the element after the last one found is now. -1 if none was found.
local function next_offsets()
  local offsets = {}
  for i, window in ipairs(windows) do
    offsets[i] = window.furthest < 0 and -1 or window.furthest + 1 - #window.taken
  end
  return offsets
end

-- The proof that a job is not in the list where its record says. The caller read these fields of the record, then the
-- whole list, and did not see the job. Every verb that puts a job into a list changes one of the fields, and so does
-- restore.lua (`restored`). If they are the same now, the job is still not there. The ends of the list are searched all
-- the same: another program may have pushed the job.
local PROOF_FIELDS = { 'state', 'json', 'queue', 'worker', 'due', 'queued', 'started', 'attempts', 'restored' }

local function is_absent(list, raw, was, proof)
  if proof == '' then return false end
  local values = {}
  for i = 1, #PROOF_FIELDS do values[i] = was[i] or '' end
  if table.concat(values, '\0') ~= proof then return false end
  return not (read('LPOS', list, raw, 'MAXLEN', NEAR) or read('LPOS', list, raw, 'RANK', -1, 'MAXLEN', NEAR))
end
