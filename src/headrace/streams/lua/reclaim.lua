-- reclaim: make entries available for a retry now whose worker has been idle for too long. Entries that wait for a
-- retry keep their time. The server removes entries that were deleted from the stream.
--@flags allow-oom
--@include group
-- KEYS, ARGV as in group.lua, then idle ms, cursor ('0-0': start), most entries
-- Returns    {next cursor ('0-0': finished), returned, deleted from the stream}
next_retry = find_next_retry()
local answer = redis.call('XAUTOCLAIM', STREAM, GROUP, RETRY_CONSUMER, ARGV[3], ARGV[4], 'COUNT', ARGV[5], 'JUSTID')
local returned, deleted = 0, answer[3] or {}
for _, id in ipairs(answer[2]) do
  if redis.call('ZADD', RETRIES, 'NX', format_int(NOW), id) == 1 then
    end_deferral(id)
    returned = returned + 1
  end
end
for _, id in ipairs(deleted) do
  redis.call('ZREM', RETRIES, id)
  end_deferral(id)
end
add_count('reclaim', returned)
add_count('gone', #deleted)
if returned > 0 then note_retry(NOW) end
wake_idle_workers()
return { answer[1], returned, #deleted }
