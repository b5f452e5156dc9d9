-- Tick events, which show that the shard is alive. pack_event is generated (model/event.py).
--@include keys, clock, shard

-- Emit a tick event if the last one is at least `period_ms` old. Return 1 if it was emitted, else 0, and the
-- milliseconds until the next one. From ticks, history infers that nothing happened, or that the last event before a
-- silence was lost. Must not be called between `load_shard` and `save_all`, which writes `seq` as it was loaded.
local function emit_tick(maxlen, period_ms)
  local last_tick = tonumber(redis.call('HGET', META, 'ticked') or nil)
  if last_tick and last_tick <= NOW and NOW - last_tick < period_ms then return 0, period_ms - (NOW - last_tick) end
  redis.call('HSET', META, 'ticked', format_int(NOW))
  local seq = redis.call('HINCRBY', META, 'seq', 1)
  if redis.call('GET', METRICS_ENABLED) ~= '0' then
    local stream_maxlen = get_stored_bound(4) or maxlen
    redis.pcall('XADD', METRICS, 'MAXLEN', '~', stream_maxlen, '*', 'e',
      pack_event({ seq = format_int(seq), op = 'tick', n = 0 }))
  end
  return 1, period_ms
end
