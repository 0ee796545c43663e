#!lua flags=allow-oom
-- Admit claimed jobs of limited routes, in the order of the call. An admitted job becomes a holder of its route. A holder
-- counts only while the processing list of its slot holds its bytes; stale ones that are seen here are removed.
--
-- own KEYS   of each request: the holders of its route (hash: slot → raw), the window counter of its route, the
--            processing list of its slot
-- own ARGV   1 and 2 pattern of processing lists, split at its %s; 3 wait in ms if a route is full; of each request:
--            slot, raw, most holders (0 = any number), most starts in one window (0 = any number), window in ms
-- returns    for each: admitted, full, rate or lost; ms until it may ask again (0 = admitted)
local STRIDE = 5
local before, after, full_wait = ARGV[own_args + 1], ARGV[own_args + 2], tonumber(ARGV[own_args + 3])
local total = (#ARGV - own_args - 3) / STRIDE
local answers, routes, in_order = {}, {}, {}

-- Read the holders that count, and list the stale ones.
local function read_holders(route)
  local flat = redis.call('HGETALL', route.key)
  for i = 1, #flat, 2 do
    if read('LPOS', before .. flat[i] .. after, flat[i + 1]) then
      route.holders[flat[i]] = flat[i + 1]
      route.count = route.count + 1
    else
      route.stale[#route.stale + 1] = flat[i]
    end
  end
end

-- A counter without an expiry, or with one beyond its window, is left from another program or configuration.
local function read_window(route, window)
  route.used, route.left = tonumber(redis.call('GET', route.counter)) or 0, redis.call('PTTL', route.counter)
  if route.left < 0 or route.left > window then route.used, route.left = 0, window end
end

local function open_route(key, counter, most, window)
  require_access(key, 'hash', 'HGETALL', 'HGET', 'HSET', 'HDEL')
  require_access(counter, 'string', 'GET', 'PTTL', 'SET', 'INCRBY')
  local route = { key = key, counter = counter, window = window, holders = {}, stale = {}, added = {}, count = 0, taken = 0 }
  read_window(route, window)
  -- Without a limit of holders it is enough to remove stale ones once in a window.
  route.is_complete = most > 0 or route.used == 0
  if route.is_complete then read_holders(route) end
  routes[key] = route
  in_order[#in_order + 1] = route
  return route
end

local function admit(route, processing, slot, raw, most, rate)
  if not read('LPOS', processing, raw) then return { 'lost', 1 } end
  local held = route.holders[slot] or (not route.is_complete and redis.call('HGET', route.key, slot))
  if held == raw then return { 'admitted', 0 } end
  if most > 0 and route.count >= most then return { 'full', full_wait } end
  if rate > 0 and route.used + route.taken >= rate then return { 'rate', math.max(1, route.left) } end
  if rate > 0 then route.taken = route.taken + 1 end
  route.holders[slot], route.count = raw, route.count + 1
  route.added[#route.added + 1] = slot
  return { 'admitted', 0 }
end

for i = 1, total do
  local k, a = own_keys + 3 * (i - 1), own_args + 3 + STRIDE * (i - 1)
  local holders, counter, processing = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local slot, raw, most, rate, window = unpack(ARGV, a + 1, a + STRIDE)
  most, rate, window = tonumber(most), tonumber(rate), tonumber(window)
  local route = routes[holders] or open_route(holders, counter, most, window)
  answers[i] = admit(route, processing, slot, raw, most, rate)
end

for _, route in ipairs(in_order) do
  for _, slot in ipairs(route.stale) do redis.call('HDEL', route.key, slot) end
  for _, slot in ipairs(route.added) do redis.call('HSET', route.key, slot, route.holders[slot]) end
  if route.taken > 0 and route.used == 0 then
    redis.call('SET', route.counter, int_text(route.taken), 'PX', int_text(route.window))
  elseif route.taken > 0 then
    redis.call('INCRBY', route.counter, int_text(route.taken))
  end
end
return answers
