-- save_report: what a watcher saw of a group, for those who look at it now. What it cannot see it says, and since when.
--@flags allow-oom
--@include clock
-- KEYS       the group's record, the list of all records of the shard
-- ARGV       the group's place in that list, stream, group, how often it is looked at (ms), what was seen ('':
--            nothing), why not all of it is known ('': it is), how long the record is kept (ms)
local RECORD, ALL = KEYS[1], KEYS[2]
local seen, why, keep = ARGV[5], ARGV[6], tonumber(ARGV[7])

redis.call('HSET', RECORD, 'stream', ARGV[2], 'group', ARGV[3], 'every', ARGV[4], 'looked', whole(NOW))
if seen ~= '' then redis.call('HSET', RECORD, 'seen', seen, 'at', whole(NOW)) end
if why == '' then
  redis.call('HDEL', RECORD, 'why', 'since')
else
  redis.call('HSETNX', RECORD, 'since', whole(NOW))
  redis.call('HSET', RECORD, 'why', why)
end
redis.call('PEXPIRE', RECORD, whole(keep))
redis.call('ZADD', ALL, whole(NOW), ARGV[1])
redis.call('ZREMRANGEBYSCORE', ALL, '-inf', whole(NOW - keep))
return 1
