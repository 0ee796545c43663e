-- Searches in long lists. One call must not block the server, and 200,000 elements take about 10 ms to compare. So a
-- script that searches looks only at the ends of a list, and where the caller saw the job a moment ago. It answers
-- `far` if that is not enough: the caller then reads the list page by page, and asks again with the position. A script that
-- has compared many elements stops, returns the answers it has, and its caller continues with the rest.
--
-- KEYS, ARGV: see arguments.lua

local AT_ENDS, AROUND, ENOUGH = 20000, 100, 40000 -- elements
local FAR, EVERYWHERE = -1, 'all'
local searched = 0

-- Whether the script should leave its other jobs to the next call.
local function has_searched_enough()
  return searched > ENOUGH
end

local function find_around(list, raw, hint)
  local first = math.max(0, hint - AROUND)
  for i, found in ipairs(read('LRANGE', list, first, hint + AROUND)) do
    if found == raw then return first + i - 1 end
  end
  return nil
end

local function find_from_end(list, raw, rank, limit, length)
  local position = read('LPOS', list, raw, 'RANK', rank, 'MAXLEN', limit)
  searched = searched + math.min(limit, not position and length or rank == 1 and position or length - position)
  return position or nil
end

-- The position of these bytes, counted from the head; nil if they are not there; FAR if they may be in the part that
-- was not searched. `rank` is the end to begin at: 1 = head, -1 = tail. `hint` is the position where the caller saw them,
-- '' if it did not look, or EVERYWHERE to search the whole list.
local function find(list, raw, rank, hint)
  local length = read('LLEN', list)
  local around = tonumber(hint)
  local position = around and find_around(list, raw, around)
  if position then return position end
  if hint == EVERYWHERE or length <= ENOUGH then return find_from_end(list, raw, rank, length, length) end
  return find_from_end(list, raw, rank, AT_ENDS, length) or find_from_end(list, raw, -rank, AT_ENDS, length) or FAR
end

-- Remove these bytes, found at this position by a search from the end `rank`. In a long list the nearer end is taken;
-- then a copy with the same bytes that is nearer to that end goes in their place.
local function remove_at(list, raw, rank, position)
  local length = read('LLEN', list)
  if length > ENOUGH then rank = 2 * position < length and 1 or -1 end
  redis.call('LREM', list, rank, raw)
  searched = searched + (rank == 1 and position or length - position)
end
