#!lua flags=no-writes
-- List a page of the orders whose slot is not registered, or that are old.
--
-- own KEYS   1 orders
-- own ARGV   1 cursor, 2 age in ms, 3 about how many to read
-- returns    the next cursor ('0' = the end); four values for each order: id, slot, time in ms, body
local orders, cursor, age, size = KEYS[own_keys + 1], unpack(ARGV, own_args + 1)
local page = read('HSCAN', orders, cursor, 'COUNT', size)
local before, answers = now - tonumber(age), {}
for i = 1, #page[2], 2 do
  local at, slot, body = string.match(page[2][i + 1], '^(%d+) ([^\n]*)\n(.*)$')
  if at and (tonumber(at) < before or not read('HGET', WORKERS, slot)) then
    answers[#answers + 1] = { page[2][i], slot, at, body }
  end
end
return { page[1], answers }
