-- Cancel running jobs: move each from its slot's processing list to the cancelled list.
--
-- Part of settle_and_claim. own KEYS, own ARGV: settlements, see prelude/settlements.lua
-- returns    done, done already or fenced for each
require_ended_list(CANCELLED)
local raws = {}
return settle(function(job)
  local has_copies = end_attempt(job, 'cancelled', 'ended', NOW)
  expire_record(job, has_copies)
  raws[#raws + 1] = job.next_raw
  count('cancelled')
end, function() push_ended(CANCELLED, 'cancelled', raws) end)
