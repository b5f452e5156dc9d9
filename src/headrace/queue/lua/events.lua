-- Metric events. Needs the generated VERBS and pack_event.
--@include keys, clock, chunks, shard, queues, fair_index

-- What a queue has counted of every verb; 0 if never.
local function read_odometers(queue)
  local fields = {}
  for i, verb in ipairs(VERBS) do fields[i] = 'o:' .. verb end
  local totals = redis.call('HMGET', queue_key(queue.E, queue.Q), unpack(fields))
  for i, total in ipairs(totals) do totals[i] = total or '0' end
  return table.concat(totals, ',')
end

-- Odometers and the shard's event number always advance, so a switched-off or failing stream shows as missing
-- events later. Only the XADD may fail, and its error is dropped: an operation that happened must
-- not be reported as failed because nobody could write about it.
local function emit_event(queue, op_count, seq, maxlen, enabled)
  local odometer
  if op_count.n > 0 then
    odometer = format_int(redis.call('HINCRBY', queue_key(queue.E, queue.Q), 'o:' .. op_count.op, op_count.n))
  end
  if not enabled then return end
  local env = queue.environment
  queue.seq, queue.op, queue.n, queue.odometer = format_int(seq), op_count.op, op_count.n, odometer
  queue.env_depth, queue.env_running, queue.env_limit = env.depth, env.running, env.limit
  local cold, oldest = queue.cold, queue.oldest
  if cold and cold.oldest and not (oldest and oldest < cold.oldest) then oldest = cold.oldest end
  queue.depth, queue.scheduled, queue.cold_depth, queue.cold_bytes = queue.ready, queue.warm_scheduled, 0, 0
  queue.bytes = queue.bytes or format_int(queue.warm_bytes)
  if cold then
    queue.depth, queue.scheduled = format_int(queue.ready + cold.depth),
      format_int(queue.warm_scheduled + cold.scheduled)
    queue.bytes, queue.cold_depth = format_int(queue.warm_bytes + cold.bytes), format_int(cold.depth)
    queue.cold_bytes = format_int(cold.bytes)
  end
  queue.oldest_ms = oldest and format_int(oldest)
  queue.waits, queue.runs = table.concat(op_count.waits, ','), table.concat(op_count.runs, ',')
  queue.odometers = op_count.op == 'resync' and read_odometers(queue) or nil
  redis.pcall('XADD', METRICS, 'MAXLEN', '~', maxlen, '*', 'e', pack_event(queue))
end

-- Emit the events of the queues that the script has loaded, and write the shard's own numbers. One event per queue and
-- verb; a queue whose numbers changed without a verb (a limit, a pause), or whose events were lost, gets a `resync`,
-- which counts nothing and tells all its numbers.
local function emit_events(maxlen)
  local events = {}
  for _, queue in ipairs(touched_queues) do
    if queue.resync then queue.ops[#queue.ops + 1] = { op = 'resync', n = 0, waits = {}, runs = {} } end
    for _, op_count in ipairs(queue.ops) do events[#events + 1] = { queue, op_count } end
  end
  -- Before the events: no two scripts may give their events the same numbers. A number without an event is a gap, and
  -- known as one.
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
