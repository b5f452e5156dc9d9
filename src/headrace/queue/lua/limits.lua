-- How many jobs may run.

-- An environment may run its limit times its burst factor in all; none of its queues more than the
-- limit itself, so that one queue cannot take the burst for itself.
local function count_free_slots(queue)
  local env = queue.environment
  local slots = math.huge
  if queue.limit then slots = queue.limit - queue.running end
  if env.limit then
    slots = math.min(slots, env.limit - queue.running, env.max_running - env.running)
  end
  return slots
end

local function is_env_blocked(env)
  return env.limit ~= nil and env.running >= env.max_running
end

-- Whether neither the queue's own limit nor that of its environment keeps it from running one more job.
local function is_below_limits(queue)
  local env_limit = queue.environment.limit
  return (not queue.limit or queue.running < queue.limit) and (not env_limit or queue.running < env_limit)
end
