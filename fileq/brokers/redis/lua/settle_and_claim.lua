#!lua flags=allow-oom
-- Settle claims, verb by verb, and then claim for the free slots. Each file without a shebang (claim, complete, retry,
-- bury, …) is a part of this script.
--
-- own KEYS   those of the parts, one part after the other
-- own ARGV   1 how many parts; of each part: its verb and the numbers of its settlements or slots, of its keys and of
--            its arguments; then the arguments of the parts, one part after the other
-- returns    what each part returns; an error in the position of a part that was refused and changed nothing. The variant
--            for members of batches returns one value more: the ids of the batches that it has finished. Another
--            variant that meets a member refuses the part with the code BATCH and claims nothing.
local parts = tonumber(ARGV[own_args + 1])
local head, answers = own_args + 1, {}
own_args = head + 4 * parts
require_record_permissions()
require_counters()

for i = 1, parts do
  local verb, size, key_count, argument_count = unpack(ARGV, head + 1, head + 4)
  local next_keys, next_args = own_keys + key_count, own_args + argument_count
  own_size = tonumber(size)
  local ok, answer = pcall(PARTS[verb])
  answers[i] = answer
  if not ok and type(answer) ~= 'table' then answers[i] = { err = 'ERR ' .. tostring(answer) } end
  head, own_keys, own_args = head + 4, next_keys, next_args
end
if joining then
  joining.write()
  answers[parts + 1] = joining.finished
end
write_counters()
publish_events()
return answers
