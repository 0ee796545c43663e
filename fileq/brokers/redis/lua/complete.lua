-- Complete jobs: each leaves its slot's list for the completed list, with its record and the counters.
--
-- Part of a turn. own KEYS, own ARGV: settlements, see the prelude
-- returns   done, done already or fenced for each
must_list_ended(COMPLETED)
must_take(LEDGER, 'hash', 'HGET', 'HSET')
local raws = {}
return settle(function(job)
  local has_copies = close_attempt(job, 'completed', 'ended', NOW, 'result', job.result)
  expire_record(job, has_copies)
  raws[#raws + 1] = job.onward
  count('completed')
  if job.superseded then count('superseded') end
  if job.path ~= '' then learn(job.path, job.signature, job.device, job.id) end
end, function() list_ended(COMPLETED, 'completed', raws) end)
