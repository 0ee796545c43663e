#!lua flags=no-writes
-- List the producers whose lease has not ended.
--
-- own KEYS   1 producers
-- returns    two values for each producer: its id, its information (JSON)
local reports, answers = read('HGETALL', KEYS[own_keys + 1]), {}
for i = 1, #reports, 2 do
  local ends, info = string.match(reports[i + 1], '^(%d+) (.*)$')
  if ends and tonumber(ends) > now then answers[#answers + 1] = { reports[i], info } end
end
return answers
