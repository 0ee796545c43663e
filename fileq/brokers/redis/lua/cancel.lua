-- Cancel running jobs: each leaves its slot's list for the cancelled list.
--
-- Part of a turn. own KEYS, own ARGV: settlements, see the prelude
-- returns   done, done already or fenced for each
must_list_ended(CANCELLED)
local raws = {}
return settle(function(job)
  local has_copies = close_attempt(job, 'cancelled', 'ended', NOW)
  expire_record(job, has_copies)
  raws[#raws + 1] = job.onward
  count('cancelled')
end, function() list_ended(CANCELLED, 'cancelled', raws) end)
