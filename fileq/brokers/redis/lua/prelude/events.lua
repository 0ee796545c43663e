-- Events: collected while a script runs, published once at its end, and only if a subscriber may receive them. A script
-- is atomic, so a subscriber receives every transition after its SUBSCRIBE. brokers/wire_events.py builds the same bytes
-- for the other brokers.
--
-- KEYS, ARGV: see common.lua

-- Whether a subscriber may be there. Unknown counts as yes: on a cluster, where every name carries a hash tag, it may be
-- connected to another node. A replica that can still continue the stream of commands, connected or not, passes what is
-- published on to its own subscribers; then the server has a replication backlog.
local function find_subscribers()
  if string.find(CHANNEL, '{', 1, true) then return true end
  local may = redis.acl_check_cmd
  if not (may('PUBSUB', 'NUMSUB', CHANNEL) and may('PUBSUB', 'NUMPAT') and may('INFO', 'replication')) then return true end
  if redis.call('PUBSUB', 'NUMSUB', CHANNEL)[2] > 0 or redis.call('PUBSUB', 'NUMPAT') > 0 then return true end
  return not string.find(redis.call('INFO', 'replication'), 'repl_backlog_active:0', 1, true)
end

local FEW_EVENTS = 2 -- to publish so few costs less than to look for subscribers
local subscribed
local function has_subscribers()
  if subscribed == nil then subscribed = find_subscribers() end
  return subscribed
end

-- Each event that the caller made ends with `"at":0}`; the time of this script replaces the 0.
local events = {}
local function add_event(event)
  if event ~= '' and has_subscribers() then events[#events + 1] = string.sub(event, 1, -3) .. NOW .. '}' end
end

-- A text as JSON. The table and the function inside are rarely needed, so they are not made in each call of the script.
local function json_text(text)
  if not string.find(text, '[%z\1-\31"\\]') then return '"' .. text .. '"' end
  local short = { ['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't', ['"'] = '"', ['\\'] = '\\' }
  local escaped = string.gsub(text, '[%z\1-\31"\\]', function(character)
    return '\\' .. (short[character] or string.format('u%04x', string.byte(character)))
  end)
  return '"' .. escaped .. '"'
end

-- The fields of a job that fileq wrote, in one match from the first byte. Any other job is parsed; of a long one, what
-- is before its payload.
local function event_fields(raw)
  local head = #raw > MAX_PARSED_BYTES and string.sub(raw, 1, MAX_PARSED_BYTES) or raw
  local id, path, priority, retries, rest = string.match(
    head,
    '^{"id":("[^"\\%c]+"),"filepath":("[^"\\]*"),"filesize":%d+,"priority":("[^"\\]*"),"retries":(%d+),'
      .. '"creation_time":"[^"\\]*","trace_id":"%x*","span_id":"%x*"()'
  )
  local kind = id and string.match(head, '^,"type":("[^"\\]*")', rest)
  if id and (kind or not string.find(head, '"type":', rest, true)) then
    return id, kind or 'null', priority, retries, path
  end
  local payload = head ~= raw and string.find(head, ',"payload":', 1, true)
  local job = parse_json(payload and string.sub(head, 1, payload - 1) .. '}' or raw)
  local function text(name, otherwise)
    return type(job[name]) == 'string' and json_text(job[name]) or otherwise
  end
  local retried = int_text(tonumber(job.retries) or 0)
  return json_text(read_id(raw) or ''), text('type', 'null'), text('priority', '""'), retried, text('filepath', '""')
end

-- The event of a job that did not fail. `queue` is nil for the priority in the job.
local function add_job_event(name, raw, queue, slot, duration)
  if not has_subscribers() then return end
  local id, kind, priority, retries, path = event_fields(raw)
  events[#events + 1] = '{"event":"' .. name .. '","job_id":' .. id .. ',"type":' .. kind .. ',"priority":'
    .. (queue and json_text(queue) or priority) .. ',"worker_id":' .. json_text(slot) .. ',"duration_ms":' .. duration
    .. ',"error":"","retry_count":' .. retries .. ',"filepath":' .. path .. ',"at":' .. NOW .. '}'
end

-- The event of a waiting job that was cancelled.
local function add_cancelled_event(id, queue, raw)
  if not has_subscribers() then return end
  local _, _, _, _, path = event_fields(raw)
  events[#events + 1] = '{"event":"job:cancelled","job_id":' .. json_text(id) .. ',"type":null,"priority":'
    .. json_text(queue) .. ',"worker_id":"","duration_ms":0,"error":"cancelled","retry_count":0,"filepath":' .. path
    .. ',"at":' .. NOW .. '}'
end

-- By pcall: a user without permission for the channel can still do everything else.
local function publish_events()
  for _, event in ipairs(events) do redis.pcall('PUBLISH', CHANNEL, event) end
end
