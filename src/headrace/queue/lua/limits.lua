-- Concurrency limits: how many jobs may run.

-- Return how many more jobs of a queue may run. An environment may run its limit times its burst factor in total
-- (`max_running`), each of its queues at most the limit, so that one queue cannot use all of the burst.
local function count_free_slots(queue)
  local env = queue.environment
  local slots = math.huge
  if queue.limit then slots = queue.limit - queue.running end
  if env.limit then
    slots = math.min(slots, env.limit - queue.running, env.max_running - env.running)
  end
  return slots
end

-- Return whether an environment is at its limit.
local function is_env_blocked(env)
  return env.limit ~= nil and env.running >= env.max_running
end

-- Return whether the queue is below its own limit and below what its environment allows a queue.
local function is_below_limits(queue)
  local env_limit = queue.environment.limit
  return (not queue.limit or queue.running < queue.limit) and (not env_limit or queue.running < env_limit)
end
