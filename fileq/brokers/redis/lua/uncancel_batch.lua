#!lua flags=allow-oom
-- Remove the mark of a cancelled batch, so that its jobs run again.
--
-- own KEYS   those of require_batch() (prelude/batches.lua)
-- own ARGV   1 id
-- returns    1, or 0 without the mark
require_batch()
local batch = batch_of(ARGV[own_args + 1])
if not batch or batch.is_cancelled ~= '1' then return 0 end
change_batch(batch, 'is_cancelled', '0')
write_batches()
return 1
