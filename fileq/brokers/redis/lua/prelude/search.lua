-- Searches in lists of any length. Redis finds an element of a list only by comparing, 0.1 µs each, and one call must not
-- block the server. So one call searches windows of lists. Its caller reads a list page by page, sees where the jobs
-- are, and names the window (redis/list_search.py). The list may have changed since, so a script trusts only its own
-- look at the window. A job that is not in the window is `far`, unless the window is the whole list.
--
-- own ARGV   1 number of windows; of each: number of its queue (0 = the dead-letter list), where it begins, counted from
--            the tail (the old end, 0 = the last element), its size. A short list is always searched as a whole.
--
-- KEYS, ARGV: see common.lua

local SHORT, NEAR, FAR = 1000, 250, -1 -- elements
local LONG = 65536 -- bytes
local windows, window_of = {}, {}

-- The window is read when the first job is looked for in it.
local function open_window(list, first, size, is_newest_first)
  require_access(list, 'list', 'LRANGE', 'LPOS')
  local length = read('LLEN', list)
  if length <= SHORT then first, size = 0, length end
  local beyond = math.min(first + size, length)
  return {
    list = list, length = length, first = first, beyond = beyond, is_whole = first == 0 and beyond == length,
    is_newest_first = is_newest_first, furthest = -1, offset_of = {}, next_copy = {}, taken = {}, is_looked_up = {},
  }
end

-- Of copies with the same bytes the oldest is found first, or the newest. `offset_at` maps the indexes of `raws`, whose
-- newest element is the first one, to offsets.
local function add_to_window(window, raws, offset_at)
  local from, to, step = 1, #raws, 1
  if window.is_newest_first then from, to, step = #raws, 1, -1 end
  local offset_of = window.offset_of
  for i = from, to, step do
    local offset, raw = offset_at(i), raws[i]
    if raw then window.next_copy[offset], offset_of[raw] = offset_of[raw], offset end
  end
end

local function read_window(window)
  window.is_read = true
  local beyond, first = window.beyond, window.first
  local raws = beyond > first and read('LRANGE', window.list, int_text(-beyond), int_text(-first - 1)) or {}
  for i, raw in ipairs(raws) do
    if #raw > LONG then raws[i] = false end
  end
  add_to_window(window, raws, function(i) return beyond - i end)
end

-- Redis compares the lengths first, so it finds long bytes fast, and no others have to be copied.
local function look_up_long(window, raw)
  window.is_looked_up[raw] = true
  local indexes, raws = read('LPOS', window.list, raw, 'COUNT', 0), {}
  for i = 1, #indexes do raws[i] = raw end
  add_to_window(window, raws, function(i) return window.length - 1 - indexes[i] end)
end

-- Read the windows; own_args moves on.
local function open_windows(is_newest_first)
  local total = tonumber(ARGV[own_args + 1])
  for i = 1, total do
    local a = own_args + 3 * i - 2
    local number, first, size = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
    local list = queue_key[number] or DEAD
    windows[i] = open_window(list, first, size, is_newest_first)
    window_of[list] = windows[i]
  end
  own_args = own_args + 1 + 3 * total
end

-- Where these bytes are, counted from the tail; nil if they are not in the list; FAR if they may be outside the window.
local function find(list, raw)
  local window = window_of[list]
  if not window then return FAR end
  local is_long = raw and #raw > LONG
  if is_long and not window.is_looked_up[raw] then look_up_long(window, raw) end
  if not is_long and not window.is_read then read_window(window) end
  local offset = window.offset_of[raw]
  if offset then
    window.furthest = math.max(window.furthest, offset)
    return offset
  end
  return not (is_long or window.is_whole) and FAR or nil
end

-- Take what was found at this offset: remove_taken() removes it.
local function take(list, raw, offset)
  local window = window_of[list]
  window.taken[#window.taken + 1], window.offset_of[raw] = offset, window.next_copy[offset]
end

-- Whether the window has the same bytes once more, beside what was taken.
local function has_copy(list, raw)
  return window_of[list].offset_of[raw] ~= nil
end

-- Remove what was taken, in one walk from the nearer end: each element is first replaced by a text that no other element
-- equals. Nothing may be pushed to the tails of these lists between open_windows() and this.
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

-- Take a job that waits from its place, as `was`, the PROOF_FIELDS of its record, says. Returns whether the job was
-- there; FAR if that is not known. It leaves its queue in remove_taken().
local function take_waiting(raw, number, was, proof)
  local state = was[1]
  if state == 'pending' and number then
    local list = queue_key[number]
    local offset = find(list, raw)
    if offset == FAR and not is_absent(list, raw, was, proof) then return FAR end
    if not offset or offset == FAR then return false end
    take(list, raw, offset)
    return true
  end
  if DELAYED[state] then return redis.call('ZREM', SCHEDULED, raw) == 1 end
  return false
end
