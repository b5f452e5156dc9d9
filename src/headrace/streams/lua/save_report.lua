-- save_report: store the status of a group as the watcher last saw it, or why it is not fully known, and since when.
--@flags allow-oom
--@include clock
-- KEYS       report of the group, list of all reports of the shard
-- ARGV       name in that list, stream, group, interval of the watcher (ms), status ('': none), why the status is not
--            fully known ('': it is), how long the report is kept (ms)
-- Returns    1
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
