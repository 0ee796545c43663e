#!lua flags=allow-oom
-- Realign one page of the scheduled set, latest due first: a job whose delay began in the future, because the clock has
-- stepped back since, is due after its whole delay from now on.
--
-- own ARGV   1 offset, 2 size of the page, 3 tolerance in ms
-- returns    the offset of the next page, or -1 at the end
local offset, limit, tolerance = tonumber(ARGV[own_args + 1]), tonumber(ARGV[own_args + 2]), tonumber(ARGV[own_args + 3])
local latest = now + tolerance
require_access(SCHEDULED, 'zset', 'ZADD')
require_record_permissions()
local page = read('ZRANGE', SCHEDULED, offset, offset + limit - 1, 'REV')
local stale = {}
for _, raw in ipairs(page) do
  local id = read_id(raw)
  local was = id and read('HMGET', RECORDS .. id, 'state', 'json', 'due', 'since') or {}
  local since = tonumber(was[4] or '') or 0
  if since > latest and was[2] == raw and DELAYED[was[1]] then
    local delay = math.max(0, (tonumber(was[3] or '') or 0) - since)
    stale[#stale + 1] = { record = RECORDS .. id, raw = raw, due = int_text(now + delay) }
  end
end
for _, job in ipairs(stale) do
  redis.call('HSET', job.record, 'due', job.due, 'since', NOW)
  redis.call('ZADD', SCHEDULED, job.due, job.raw)
end
-- A changed job is due earlier, so the jobs of the next pages take its place.
return #page == limit and offset + #page - #stale or -1
