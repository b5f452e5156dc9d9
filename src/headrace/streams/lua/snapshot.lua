-- snapshot: read the depth, totals and samples of a group for the watcher, all at one instant.
--@flags no-writes
--@include measure, group
-- KEYS, ARGV as in group.lua (consumer ''), then most entries to count, id after which samples are
--            requested, most samples, then verbs
-- Returns    {now µs, undelivered (-1: unknown), pending, id of the first undelivered entry, entries waiting for a
--            retry, how many of these are due, since when the first of these is due ('': none), entries added, entries
--            read ('': unknown), 1 if Headrace workers have counted here, their totals of the verbs, samples, id of the
--            first pending entry ('': none), longest idle ms of the oldest pending entries (-1: no consumer holds one),
--            length of the stream}
-- Errors     NOGROUP: there is no such group
local found = measure_group(STREAM, GROUP, tonumber(ARGV[3]))
if not found then return redis.error_reply('NOGROUP there is no such group') end
local FIRST_VERB = 6
local counts = {}
for i = FIRST_VERB, #ARGV do
  counts[#counts + 1] = tonumber(redis.call('HGET', STATS, 'o:' .. ARGV[i]) or 0)
end
local first_due = redis.call('ZRANGEBYSCORE', RETRIES, '-inf', format_int(NOW), 'WITHSCORES', 'LIMIT', 0, 1)[2]
local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
return { now_us, found.undelivered, found.pending, found.next_id, redis.call('ZCARD', RETRIES),
  redis.call('ZCOUNT', RETRIES, '-inf', format_int(NOW)), first_due or '', found.added, found.read or '',
  redis.call('EXISTS', STATS), counts, redis.call('XRANGE', SAMPLES, '(' .. ARGV[4], '+', 'COUNT', ARGV[5]),
  found.first_pending, found.idle, found.length }
