-- Cold mode: new jobs of a queue wait in PostgreSQL, and the mover refills the warm tier from there.
--@include keys, clock, cold_field, capacity, quota_checks

-- Enter cold mode. It ends when no job waits in PostgreSQL any more (leave_cold).
local function enter_cold_mode(queue, max_items, max_bytes)
  queue.cold = queue.cold or new_cold()
  queue.cold.on, queue.cold.max_items, queue.cold.max_bytes = 1, max_items, max_bytes
  queue.cold_changed = true
  redis.call('SADD', COLD, queue.name)
end

-- Request a refill if there is room and jobs wait in PostgreSQL, or if none wait there and the queue can leave cold
-- mode. Movers block on this key.
local function request_refill(queue)
  local cold = queue.cold
  if not cold or cold.on == 0 or queue.skip_refill_request then return end
  local ratio = compute_fill_ratio(queue, cold.max_items, cold.max_bytes)
  local env = queue.environment
  if env.quotas and env.jobs and env.bytes then
    ratio = math.max(ratio, compute_quota_fill_ratio(env.quotas, env.jobs, env.bytes))
  end
  if (ratio < REFILL_BELOW and cold.depth > 0) or (ratio <= LEAVE_COLD_AT and cold.depth == 0) then
    redis.call('ZADD', REFILL_REQUESTS, 'NX', format_int(NOW), queue.name)
  end
end
