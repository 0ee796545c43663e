#!lua flags=allow-oom
-- One turn of a pump: settle what ended, verb by verb, and then claim for the free slots.
--
-- own KEYS   those of the parts, one part after the other
-- own ARGV   1 how many parts; of each part: its verb, how many settlements or slots, how many keys, how many arguments;
--            then the arguments of the parts, one part after the other
-- returns    what each part returns. A part that is refused changes nothing, and its error stands in its place
local parts = tonumber(ARGV[own_args + 1])
local head, answers = own_args + 1, {}
own_args = head + 4 * parts
must_keep_records()
must_count()

for i = 1, parts do
  local verb, next_keys, next_args = ARGV[head + 1], own_keys + ARGV[head + 3], own_args + ARGV[head + 4]
  own_size = tonumber(ARGV[head + 2])
  local ok, answer = pcall(PARTS[verb])
  answers[i] = answer
  if not ok and type(answer) ~= 'table' then answers[i] = { err = 'ERR ' .. tostring(answer) } end
  head, own_keys, own_args = head + 4, next_keys, next_args
end
write_counts()
publish()
return answers
