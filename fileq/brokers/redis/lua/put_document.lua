#!lua
-- Create or replace a document of the catalog. One that has this body already stays as it is.
--
-- own KEYS   1 the documents of its kind, 2 the last revision of each kind
-- own ARGV   1 kind, 2 name, 3 body, 4 the revision that the caller expects ('' = any, 0 = none)
-- returns    1 and its revision, or 0 and the revision that was found instead (0 = none)
local documents, revisions = KEYS[own_keys + 1], KEYS[own_keys + 2]
local kind, name, body, expected = ARGV[own_args + 1], ARGV[own_args + 2], ARGV[own_args + 3], ARGV[own_args + 4]
require_access(documents, 'hash', 'HGET', 'HSET')
require_access(revisions, 'hash', 'HINCRBY')
local was = redis.call('HGET', documents, name)
local revision, old = string.match(was or '0\n', '^(%d+)\n(.*)$')
if was and old == body then return { 1, tonumber(revision) } end
if expected ~= '' and expected ~= revision then return { 0, tonumber(revision) } end
local next_revision = redis.call('HINCRBY', revisions, kind, 1)
redis.call('HSET', documents, name, int_text(next_revision) .. '\n' .. body)
return { 1, next_revision }
