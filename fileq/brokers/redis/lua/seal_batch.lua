#!lua flags=allow-oom
-- Seal an open batch, and finish it if nothing is unfinished.
--
-- own KEYS   those of require_batch() (prelude/batches.lua)
-- own ARGV   1 id
-- returns    1, or 0 if it is not open
require_batch()
local batch = batch_of(ARGV[own_args + 1])
if not batch or batch.state ~= 'open' then return 0 end
seal_batch(batch)
finish_batch(batch)
write_batches()
write_counters()
publish_events()
return 1
