#!lua flags=allow-oom
-- Remove a document of the catalog.
--
-- own KEYS   1 the documents of its kind, 2 the last revision of each kind
-- own ARGV   1 kind, 2 name, 3 the revision that the caller expects ('' = any)
-- returns    1 and its revision; 0 and the revision that was found instead; -1 and 0 if there is none
local documents, revisions = KEYS[own_keys + 1], KEYS[own_keys + 2]
local kind, name, expected = ARGV[own_args + 1], ARGV[own_args + 2], ARGV[own_args + 3]
require_access(documents, 'hash', 'HGET', 'HDEL')
require_access(revisions, 'hash', 'HINCRBY')
local was = redis.call('HGET', documents, name)
if not was then return { -1, 0 } end
local revision = string.match(was, '^%d+')
if expected ~= '' and expected ~= revision then return { 0, tonumber(revision) } end
redis.call('HINCRBY', revisions, kind, 1)
redis.call('HDEL', documents, name)
return { 1, tonumber(revision) }
