-- snapshot: what a watcher tells of a group, all of one instant.
--@flags no-writes
--@include measure, group
-- KEYS, ARGV as in group.lua (consumer ''), then how many entries may be counted, id after which samples are wanted,
--            how many, then verbs
-- Returns    {now µs, undelivered (-1: unknown), pending, id of the first undelivered entry, how many wait to be tried
--            again, how many of those may be now, since when the first of these may ('': none), entries added, entries
--            read ('': unknown), 1 if our workers have counted here, their counts of the verbs, samples, id of the
--            first pending entry ('': none), longest idle ms of the oldest (-1: none)}
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
  found.first_pending, found.idle }
