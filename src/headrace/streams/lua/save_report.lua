-- save_report: what a watcher saw of a group, for those who look at it now. What it cannot see it says, and since when.
--@flags allow-oom
--@include clock
-- KEYS       the group's record, the list of all records of the shard
-- ARGV       the group's place in that list, stream, group, how often it is looked at (ms), what was seen ('':
--            nothing), why not all of it is known ('': it is), how long the record is kept (ms)
local REPORT, REPORTS = KEYS[1], KEYS[2]
local status, unknown_reason, keep_ms = ARGV[5], ARGV[6], tonumber(ARGV[7])

redis.call('HSET', REPORT, 'stream', ARGV[2], 'group', ARGV[3], 'every', ARGV[4], 'looked', format_int(NOW))
if status ~= '' then redis.call('HSET', REPORT, 'seen', status, 'at', format_int(NOW)) end
if unknown_reason == '' then
  redis.call('HDEL', REPORT, 'why', 'since')
else
  redis.call('HSETNX', REPORT, 'since', format_int(NOW))
  redis.call('HSET', REPORT, 'why', unknown_reason)
end
redis.call('PEXPIRE', REPORT, format_int(keep_ms))
redis.call('ZADD', REPORTS, format_int(NOW), ARGV[1])
redis.call('ZREMRANGEBYSCORE', REPORTS, '-inf', format_int(NOW - keep_ms))
return 1
