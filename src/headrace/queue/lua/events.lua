-- Metric events of queues. VERBS and pack_columns are generated (model/event.py).
--@include keys, clock, chunks, shard, queues, fair_index

-- Return the lifetime totals of a queue, one per verb.
local function read_odometers(queue)
  local fields = {}
  for i, verb in ipairs(VERBS) do fields[i] = 'o:' .. verb end
  local totals = redis.call('HMGET', queue_key(queue.E, queue.Q), unpack(fields))
  for i, total in ipairs(totals) do totals[i] = total or '0' end
  return table.concat(totals, ',')
end

-- Write one event, if metrics are enabled. Odometers and event numbers advance in any case, so that events that were
-- not written are detected later. Only the XADD may fail, and its error is ignored: an operation that was applied must
-- not be reported as failed because of its event.
local function emit_event(queue, op_count, seq, maxlen, enabled)
  local odometer
  if op_count.n > 0 then
    odometer = format_int(redis.call('HINCRBY', queue_key(queue.E, queue.Q), 'o:' .. op_count.op, op_count.n))
  end
  if not enabled then return end
  local env, cold, oldest = queue.environment, queue.cold, queue.oldest
  local depth, scheduled, bytes, cold_depth, cold_bytes = queue.ready, queue.warm_scheduled, queue.bytes, 0, 0
  if cold then
    if cold.oldest and not (oldest and oldest < cold.oldest) then oldest = cold.oldest end
    depth, scheduled = format_int(depth + cold.depth), format_int(scheduled + cold.scheduled)
    bytes, cold_depth = format_int(queue.warm_bytes + cold.bytes), format_int(cold.depth)
    cold_bytes = format_int(cold.bytes)
  end
  -- In the order of the columns. Whole numbers of up to 14 digits need no format.
  local packed = pack_columns(seq, queue.org, queue.project, queue.env, queue.queue, op_count.op, op_count.n, odometer,
    queue.epoch, depth, scheduled, queue.running, queue.limit, env.depth, env.running, env.limit,
    oldest and math.floor(oldest), bytes or format_int(queue.warm_bytes), cold_depth, cold_bytes,
    table.concat(op_count.waits, ','), table.concat(op_count.runs, ','),
    op_count.op == 'resync' and read_odometers(queue))
  redis.pcall('XADD', METRICS, 'MAXLEN', '~', maxlen, '*', 'e', packed)
end

-- Emit the events of the loaded queues, one per queue and operation, and write the counters of the shard. A queue with
-- `resync` set gets a resync event, which counts nothing and has all its gauges and odometers: its settings changed, or
-- events were lost.
local function emit_events(maxlen)
  local events = {}
  for _, queue in ipairs(touched_queues) do
    if queue.resync then queue.ops[#queue.ops + 1] = { op = 'resync', n = 0, waits = {}, runs = {} } end
    for _, op_count in ipairs(queue.ops) do events[#events + 1] = { queue, op_count } end
  end
  -- Before the events, so that no two scripts use the same event numbers. A number without an event is a gap, which
  -- readers detect.
  if #events > 0 then
    local shard_state = load_shard()
    shard_state.seq, shard_state.changed = shard_state.seq + #events, true
  end
  if shard and shard.changed then
    local fields = { 'seq', shard.seq, 'bytes', shard.bytes, 'delivery', shard.delivery, 'turn', shard.turn }
    for Q, clock in pairs(class_clocks) do append_scored(fields, 'turn:' .. Q, clock) end
    redis.call('HSET', META, unpack(fields))
  end
  if #events == 0 then return end
  local enabled = redis.call('GET', METRICS_ENABLED) ~= '0'
  maxlen = get_stored_bound(4) or maxlen
  for i, event in ipairs(events) do emit_event(event[1], event[2], shard.seq - #events + i, maxlen, enabled) end
end
