#!lua
-- Reinstate jobs that are astray: the record says where the element lies, and it does not lie there. One that nobody
-- runs any more goes to the front of its queue. One of a queue that only another configuration knows is left alone. Asked
-- only to look, it changes nothing.
--
-- own KEYS   a record a job
-- own ARGV   1 'look' or 'mend', 2 and 3 processing list pattern, cut at its %s
-- returns    1 (astray; and put back) or 0 for each
local is_mending = ARGV[own_args + 1] == 'mend'
local answers, astray = {}, {}
must_may(KEYS[own_keys + 1] or RECORDS, 'HMGET')
if is_mending then
  must_take(SCHEDULED, 'zset', 'ZADD')
  must_take(DEAD, 'list', 'LPUSH')
  for i = 1, QUEUES do must_take(queue_key[i], 'list', 'RPUSH') end
  must_keep_records()
end

local function lies(job)
  if job.state == 'pending' then return read('LPOS', queue_key[job.number], job.json) end
  if job.state == 'scheduled' or job.state == 'retrying' then return read('ZSCORE', SCHEDULED, job.json) end
  if job.state == 'dead' then return read('LPOS', DEAD, job.json) end
  if job.state ~= 'running' then return true end -- ended, and nowhere for ever
  return job.worker and read('LPOS', ARGV[own_args + 2] .. job.worker .. ARGV[own_args + 3], job.json)
end

for i = 1, #KEYS - own_keys do
  local was = read('HMGET', KEYS[own_keys + i], 'state', 'json', 'queue', 'worker', 'due', 'queued')
  local job = {
    record = KEYS[own_keys + i], state = was[1], json = was[2], number = queue_number[was[3] or ''],
    worker = was[4], due = was[5] or '0', queued = tonumber(was[6]) or 0,
  }
  local is_astray = job.state and job.json and job.number and not astray[job.record] and not lies(job)
  answers[i] = is_astray and 1 or 0
  if is_astray then astray[job.record] = job end -- a job may be named twice, it is put back once
end

local function put_back(job)
  if job.state == 'dead' then
    redis.call('LPUSH', DEAD, job.json)
  elseif job.state == 'scheduled' or job.state == 'retrying' then
    redis.call('ZADD', SCHEDULED, job.due, job.json)
  else
    local queued = job.state == 'pending' and math.max(job.queued, 1) or job.queued + 1
    redis.call('HSET', job.record, 'state', 'pending', 'queued', queued)
    redis.call('RPUSH', queue_key[job.number], job.json)
  end
  redis.call('PERSIST', job.record)
end

if is_mending then
  for _, job in pairs(astray) do put_back(job) end
end
return answers
