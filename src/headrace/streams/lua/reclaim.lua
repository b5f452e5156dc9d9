-- reclaim: entries that nobody gave a sign about for too long may be tried again now. Those that wait for their time
-- are left to wait. Entries that were deleted from the stream leave the group's list; the server does that.
--@flags allow-oom
--@include group
-- KEYS, ARGV as in group.lua, then idle ms, cursor ('0-0': begin), how many
-- Returns    {next cursor ('0-0': that was all), how many were returned, how many were gone}
local answer = redis.call('XAUTOCLAIM', STREAM, GROUP, RETRY_CONSUMER, ARGV[3], ARGV[4], 'COUNT', ARGV[5], 'JUSTID')
local returned, deleted = 0, answer[3] or {}
for _, id in ipairs(answer[2]) do
  returned = returned + redis.call('ZADD', RETRIES, 'NX', format_int(NOW), id)
end
for _, id in ipairs(deleted) do redis.call('ZREM', RETRIES, id) end
add_count('reclaim', returned)
add_count('gone', #deleted)
return { answer[1], returned, #deleted }
