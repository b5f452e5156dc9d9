-- resync: after events were lost, each queue tells its gauges and all its odometers, some queues per call. Changes
-- no number but that of the shard's events: the pipeline's user needs no right to change queues. With metrics switched
-- off it does nothing.
--@flags allow-oom
--@include events
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, cursor ('0': begin), about how many queues
-- Returns    {next cursor ('0': that was the last), how many queues told}
if redis.call('GET', METRICS_ENABLED) == '0' then return { '0', 0 } end
local scanned = redis.call('SSCAN', QUEUES, ARGV[3], 'COUNT', ARGV[4])
local resynced = 0
for _, name in ipairs(scanned[2]) do
  local E, Q = name:match('^(.*):([^:]*)$')
  -- A name may outlive its queue, which must not come back as an empty one.
  if redis.call('HEXISTS', queue_key(E, Q), 'epoch') == 1 then
    load_queue(E, Q).resync = true
    resynced = resynced + 1
  end
end
emit_events(ARGV[2])
return { scanned[1], resynced }
