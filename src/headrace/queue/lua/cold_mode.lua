-- Cold mode: new jobs of a queue wait in PostgreSQL.
--@include keys, clock, cold_field, capacity, quota_checks

-- New jobs wait in PostgreSQL from now on, until what waits there is gone.
local function enter_cold_mode(queue, max_items, max_bytes)
  queue.cold = queue.cold or new_cold()
  queue.cold.on, queue.cold.max_items, queue.cold.max_bytes = 1, max_items, max_bytes
  queue.cold_changed = true
  redis.call('SADD', COLD, queue.name)
end

-- Whoever moves jobs between the tiers waits for this: there is room again and something to fill it, or nothing is
-- left in PostgreSQL and the queue may leave cold mode.
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
