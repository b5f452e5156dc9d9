-- Cold mode: new jobs of a queue wait in PostgreSQL.
--@include keys, clock, cold_field, capacity, quota_checks

-- New jobs wait in PostgreSQL from now on, until what waits there is gone.
local function go_cold(queue, max_items, max_bytes)
  queue.cold = queue.cold or new_cold()
  queue.cold.on, queue.cold.max_items, queue.cold.max_bytes = 1, max_items, max_bytes
  queue.cold_changed = true
  redis.call('SADD', COLD, queue.name)
end

-- Whoever moves jobs between the tiers waits for this: there is room again and something to fill it, or nothing is
-- left in PostgreSQL and the queue may leave cold mode.
local function call_for_refill(queue)
  local cold = queue.cold
  if not cold or cold.on == 0 or queue.skip_refill_request then return end
  local full = fullness(queue, cold.max_items, cold.max_bytes)
  local env = queue.environment
  if env.quotas and env.jobs and env.bytes then
    full = math.max(full, quota_fullness(env.quotas, env.jobs, env.bytes))
  end
  if (full < REFILL_BELOW and cold.depth > 0) or (full <= LEAVE_AT and cold.depth == 0) then
    redis.call('ZADD', HUNGRY, 'NX', whole(NOW), queue.name)
  end
end
