#!lua
-- Enqueue jobs: record, ledger, permit and queue of each in one step. A server whose memory is full refuses the call.
--
-- own KEYS   the record of each job; then the unique keys, if a job has one
-- own ARGV   1 permits of one window (0 = none needed); of each job the arguments of prelude/entries.lua
-- returns    permits taken; ms until the window ends (0 = nothing was throttled); for each job: enqueued, known,
--            duplicate, throttled or refused; for each job whose unique key another job has: its number, and the id of
--            the other job (it is a duplicate); now in ms
local WINDOW = 1000
local limit = tonumber(ARGV[own_args + 1])
local total = (#ARGV - own_args - 1) / ENTRY_ARGS
local unique = KEYS[own_keys + total + 1]
local taken, throttled, results, existing = 0, false, {}, {}
if total <= FEW_EVENTS then subscribed = true end

require_counters()
require_entry_permissions(unique)
if limit > 0 then require_access(RATE_LIMIT, 'string', 'GET', 'SET', 'INCRBY', 'PTTL', 'PEXPIRE') end

-- The types of all keys that this call may write. A record is written only where none exists.
local kind_of, is_recorded = {}, {}
if unique then kind_of[unique] = 'hash' end
for i = 1, total do
  local a, record = own_args + 1 + (i - 1) * ENTRY_ARGS, KEYS[own_keys + i]
  is_recorded[record] = has_record(record, ARGV[a + ENTRY.origin])
  if is_recorded[record] then require_type(record, 'hash') end
  if ARGV[a + ENTRY.path] ~= '' then kind_of[LEDGER] = 'hash' end
  require_deadline(a)
  if ARGV[a + ENTRY.delay] ~= '0' or ARGV[a + ENTRY.due] ~= '0' then kind_of[SCHEDULED] = 'zset' end
  kind_of[queue_key[tonumber(ARGV[a + ENTRY.queue])]] = 'list'
  if joining and ARGV[a + ENTRY.batch] ~= '' then joining.require(ARGV[a + ENTRY.batch]) end
end
for key, kind in pairs(kind_of) do require_type(key, kind) end
local used = limit > 0 and tonumber(redis.call('GET', RATE_LIMIT) or '0') or 0
-- No window lasts longer than this: the server's clock has stepped back, so the window has ended.
if used > 0 and redis.call('PTTL', RATE_LIMIT) > WINDOW then used = 0 end

for i = 1, total do
  local a, record = own_args + 1 + (i - 1) * ENTRY_ARGS, KEYS[own_keys + i]
  local path, key, batch = ARGV[a + ENTRY.path], ARGV[a + ENTRY.key], ARGV[a + ENTRY.batch]
  local is_version = path ~= '' and not string.find(ARGV[a + ENTRY.flags], 'a', 1, true)
  local versions = path ~= '' and redis.call('HGET', LEDGER, path)
  local holder = key ~= '' and not is_recorded[record] and key_holder(unique, key)
  if is_recorded[record] or holder then
    results[i] = 'duplicate'
    if holder then existing[#existing + 1] = { i, holder } end
  elseif is_version and is_known(versions, ARGV[a + ENTRY.signature]) then
    results[i] = 'known'
  elseif joining and batch ~= '' and not joining.is_open(batch) then
    results[i] = 'refused'
  elseif is_version and limit > 0 and used + taken >= limit then
    results[i] = 'throttled'
    throttled = true
  else
    results[i], is_recorded[record] = 'enqueued', true
    if is_version and limit > 0 then taken = taken + 1 end
    add_job(record, a, versions, unique)
  end
end

if taken > 0 then
  if used == 0 then
    redis.call('SET', RATE_LIMIT, taken, 'PX', WINDOW)
  else
    redis.call('INCRBY', RATE_LIMIT, taken)
  end
end
local wait = 0
if throttled then
  wait = redis.call('PTTL', RATE_LIMIT)
  if wait == -1 then -- a program that died before it set the expiry would throttle for ever
    redis.call('PEXPIRE', RATE_LIMIT, WINDOW)
    wait = WINDOW
  end
  wait = math.max(1, wait)
end
if joining then joining.write() end
write_counters()
publish_events()
return { taken, wait, results, existing, now }
