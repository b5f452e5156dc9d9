-- depth: read the depth of a group, all at one instant.
--@flags no-writes
--@include measure
-- KEYS[1]    stream
-- ARGV       group, most entries to count where the server does not know the number
-- Returns    {undelivered (-1: unknown), pending, id of the first undelivered entry, id of the first pending entry,
--            longest idle ms of the oldest pending entries (-1: no consumer holds one), length of the stream}
-- Errors     NOGROUP: there is no such group
local found = measure_group(KEYS[1], ARGV[1], tonumber(ARGV[2]))
if not found then return redis.error_reply('NOGROUP there is no such group') end
return { found.undelivered, found.pending, found.next_id, found.first_pending, found.idle, found.length }
