#!lua flags=allow-oom
-- Clear jobs near the front of a queue: those of the given ones that are there move to the cancelled list.
--
-- own KEYS   of each job: its record, then those of follow_ups.lua
-- own ARGV   1 queue number, 2 how far from the front a job is looked for; of each job: raw, then those of follow_ups.lua
-- returns    for each: 1, or 0 if it stayed where it was
joining = JOINING
local number, reach = tonumber(ARGV[own_args + 1]), ARGV[own_args + 2]
local list = queue_key[number]
local jobs, ids, offsets_of, taken, has_changed, answers = {}, {}, {}, {}, {}, {}
require_withdrawals()
require_access(list, 'list', 'LRANGE', 'LINDEX', 'LSET', 'LREM')
own_args = own_args + 2
while own_args < #ARGV do
  own_keys, own_args = own_keys + 1, own_args + 1
  local job = { record = KEYS[own_keys], raw = ARGV[own_args] }
  job.extras = next_extras()
  job.was = read('HMGET', job.record, 'state', 'queued', 'created', 'batch', 'origin')
  job.batch = job.was[4]
  require_extras(job.extras)
  jobs[#jobs + 1], ids[#ids + 1] = job, job.batch or false
end
require_counting(ids)

-- Where each of the bytes are, counted from the front; the last one is the nearest.
local raws = redis.call('LRANGE', list, '-' .. reach, '-1')
for i, raw in ipairs(raws) do
  local offsets = offsets_of[raw] or {}
  offsets[#offsets + 1], offsets_of[raw] = #raws - i, offsets
end

for i, job in ipairs(jobs) do
  answers[i] = 0
  local offsets = offsets_of[job.raw]
  local was = has_changed[job.record] and redis.call('HMGET', job.record, 'state', 'queued', 'created') or job.was
  local is_elsewhere = was[1] and was[1] ~= 'pending' and UNFINISHED[was[1]]
  local is_own = job.was[4] or job.was[5]
  if is_own and (was[2] or '0') == '0' or is_foreign(job.record, job.raw, job.was[4], job.was[5]) then
    is_elsewhere = true
  end
  if offsets and #offsets > 0 and not is_elsewhere then
    local queued = tonumber(was[2]) or 0
    if queued == 0 then count('adopted') end
    redis.call('HSET', job.record, 'json', job.raw, 'queue', queue_name[number], 'created', was[3] or NOW)
    withdraw(job.record, queue_name[number], job.raw, math.max(0, queued - 1))
    withdraw_member(job)
    taken[#taken + 1], has_changed[job.record], answers[i] = table.remove(offsets), true, 1
  end
end
list_withdrawn()

-- Each element is first replaced by a text that no other element equals. Follow-ups were pushed to the other end, so the
-- offsets still hold.
if #taken > 0 then
  local mark = '\0removed ' .. redis.sha1hex(NOW .. redis.call('LINDEX', list, int_text(-taken[1] - 1)))
  for _, offset in ipairs(taken) do redis.call('LSET', list, int_text(-offset - 1), mark) end
  redis.call('LREM', list, -#taken, mark)
end
write_batches()
write_counters()
publish_events()
return answers
