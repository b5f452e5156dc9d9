-- resync: after events were lost, emit a resync event (gauges and all odometers) for each queue, some queues per call.
-- Changes only the event number of the shard: the user of the pipeline needs no permission to change queues. Does
-- nothing while metrics are off.
--@flags allow-oom
--@include events
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, cursor ('0': start), about how many queues
-- Returns    {next cursor ('0': finished), queues for which an event was emitted}
if redis.call('GET', METRICS_ENABLED) == '0' then return { '0', 0 } end
local scanned = redis.call('SSCAN', QUEUES, ARGV[3], 'COUNT', ARGV[4])
local resynced = 0
for _, name in ipairs(scanned[2]) do
  local E, Q = name:match('^(.*):([^:]*)$')
  -- A name may be listed without its queue, which must not be created by this.
  if redis.call('HEXISTS', queue_key(E, Q), 'epoch') == 1 then
    load_queue(E, Q).resync = true
    resynced = resynced + 1
  end
end
emit_events(ARGV[2])
return { scanned[1], resynced }
