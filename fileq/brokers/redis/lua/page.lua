#!lua flags=no-writes
-- Read a page of a place, and its length. A page continues after the last job of the page before it: that job is looked
-- for near its former offset. The cost grows with the offset and the size, not with the length of the place.
--
-- own KEYS   1 the list, or scheduled
-- own ARGV   1 which end is the beginning: tail or head of a list, due = a sorted set; 2 offset; 3 digest of the job
--            before it ('' = none); 4 size; 5 bytes after which the page ends; 6 how far the job is looked for
-- returns    the length of the place, the offset of the page, the jobs
local key, order = KEYS[own_keys + 1], ARGV[own_args + 1]
local offset, wanted = tonumber(ARGV[own_args + 2]), ARGV[own_args + 3]
local size, max_bytes, reach = tonumber(ARGV[own_args + 4]), tonumber(ARGV[own_args + 5]), tonumber(ARGV[own_args + 6])
local MAX_STEP = 128

local function range(first, last)
  if order == 'due' then return read('ZRANGE', key, int_text(first), int_text(last)) end
  if order == 'head' then return read('LRANGE', key, int_text(first), int_text(last)) end
  local found, turned = read('LRANGE', key, int_text(-last - 1), int_text(-first - 1)), {}
  for i = #found, 1, -1 do turned[#turned + 1] = found[i] end
  return turned
end

-- As digest_of() in brokers/place_pages.py.
local function is_wanted(raw)
  return string.sub(redis.sha1hex(#raw .. ':' .. string.sub(raw, 1, 512)), 1, 16) == wanted
end

-- Where the job is among those from `first` to `last`; `from_end` looks at the last ones first. Also their bytes.
local function search(first, last, from_end)
  if last < first then return nil, 0 end
  local found, bytes = range(first, last), 0
  for i = 1, #found do
    local at = from_end and #found + 1 - i or i
    bytes = bytes + #found[at]
    if is_wanted(found[at]) then return first + at - 1, bytes end
  end
  return nil, bytes
end

-- After the job, or the former offset. Looks at both sides, in growing steps: jobs may be long.
local function start_of_page()
  if wanted == '' then return offset end
  local below, above, step, bytes = offset - 1, offset, 1, 0
  while bytes <= max_bytes and offset - 1 - below < reach do
    local found, read_below = search(math.max(0, below - step + 1), below, true)
    if found then return found + 1 end
    local found_above, read_above = search(above, above + step - 1, false)
    if found_above then return found_above + 1 end
    bytes = bytes + read_below + read_above
    below, above, step = below - step, above + step, math.min(2 * step, MAX_STEP)
  end
  return offset
end

local total = read(order == 'due' and 'ZCARD' or 'LLEN', key)
local start, raws, bytes, step = start_of_page(), {}, 0, 8
while #raws < size and bytes < max_bytes do
  local some = range(start + #raws, start + math.min(size, #raws + step) - 1)
  for _, raw in ipairs(some) do
    bytes = bytes + #raw
    if #raws > 0 and bytes > max_bytes then break end
    raws[#raws + 1] = raw
  end
  if #some == 0 then break end
  step = math.min(2 * step, MAX_STEP)
end
return { total, start, raws }
