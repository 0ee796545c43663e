-- Complete jobs: move each from its slot's processing list to the completed list.
--
-- Part of settle_and_claim. own KEYS, own ARGV: settlements, see prelude/settlements.lua
-- returns    done, done already or fenced for each
require_ended_list(COMPLETED)
require_permission(LEDGER, 'HGET', 'HSET')
local raws = {}
return settle(function(job)
  local has_copies = end_attempt(job, 'completed', 'ended', NOW, 'result', job.result)
  expire_record(job, has_copies)
  raws[#raws + 1] = job.next_raw
  count('completed')
  if job.superseded then count('superseded') end
  if job.path ~= '' then
    remember_version(job.path, redis.call('HGET', LEDGER, job.path), job.signature, job.device, job.id)
  end
end, function() push_ended(COMPLETED, 'completed', raws) end)
