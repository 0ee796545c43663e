-- Waiting jobs that are cancelled: what cancel_by_id, clear and fire share.
--
-- KEYS, ARGV: see common.lua

local withdrawn = {}

local function require_withdrawals()
  require_ended_list(CANCELLED)
  require_record_permissions()
  require_counters()
end

-- Write that a job is cancelled. The caller removes it from its place. `queued` is how many counted copies are left.
local function withdraw(record, queue, raw, queued)
  redis.call('HSET', record, 'state', 'cancelled', 'error', 'cancelled', 'ended', NOW, 'queued', int_text(queued))
  redis.call('HDEL', record, 'deferred')
  if queued == 0 then redis.call('PEXPIRE', record, HISTORY_TTL) end
  withdrawn[#withdrawn + 1] = raw
  count('cancelled')
  add_cancelled_event(string.sub(record, #RECORDS + 1), queue, raw)
end

-- Push the cancelled jobs to their list. Called after the last withdraw(): trimming the list may remove their records.
local function list_withdrawn()
  push_ended(CANCELLED, 'cancelled', withdrawn)
end
