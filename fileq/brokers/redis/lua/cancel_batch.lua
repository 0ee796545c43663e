#!lua flags=allow-oom
-- Cancel a batch and seal it, and its unfinished child batches too. Those that have nothing unfinished finish.
--
-- own KEYS   those of require_batch() (prelude/batches.lua), then cancels
-- own ARGV   1 id, 2 a time in ms: only if it is open and was touched before ('' = without this condition), 3 how many
--            child batches are looked at, at most; the reconciler of a worker cancels the others
-- returns    1, or 0 if it is finished, cancelled and sealed already, unknown, or was touched
require_batch()
local children_key, cancels = KEYS[own_keys + 5], KEYS[own_keys + 8]
local id, since, children_left = ARGV[own_args + 1], ARGV[own_args + 2], tonumber(ARGV[own_args + 3])
require_permission(children_key, 'SRANDMEMBER')
require_access(cancels, 'string', 'INCRBY')
local batch = batch_of(id)
if not batch or batch.state == 'finished' then return 0 end
if batch.state == 'sealed' and batch.is_cancelled == '1' then return 0 end
if since ~= '' and (batch.state ~= 'open' or tonumber(batch.touched) >= tonumber(since)) then return 0 end

-- The children of one level after the other. One that is cancelled and sealed was cancelled with its children.
local found, level = { batch }, { batch }
for _ = 1, LEVELS_MAX do
  local below = {}
  for _, parent in ipairs(level) do
    local key = parent.key .. ':children'
    local ids = children_left > 0 and redis.pcall('SRANDMEMBER', key, int_text(children_left)) or {}
    table.sort(ids)
    children_left = children_left - #ids
    for _, id in ipairs(ids) do
      local child = batch_of(id)
      if child and child.state ~= 'finished' and not (child.state == 'sealed' and child.is_cancelled == '1') then
        below[#below + 1], found[#found + 1] = child, child
      end
    end
  end
  level = below
end
for _, each in ipairs(found) do
  change_batch(each, 'is_cancelled', '1')
  seal_batch(each)
  finish_batch(each)
end
redis.call('INCRBY', cancels, 1) -- workers with members that run renew soon
write_batches()
write_counters()
publish_events()
return 1
