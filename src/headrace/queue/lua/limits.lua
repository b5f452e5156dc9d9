-- How many jobs may run.

-- An environment may run its limit times its burst factor in all; none of its queues more than the
-- limit itself, so that one queue cannot take the burst for itself.
local function room_of(queue)
  local env = queue.environment
  local room = math.huge
  if queue.limit then room = queue.limit - queue.running end
  if env.limit then
    room = math.min(room, env.limit - queue.running, env.most_running - env.running)
  end
  return room
end

local function env_blocked(env)
  return env.limit ~= nil and env.running >= env.most_running
end

-- Whether neither the queue's own limit nor that of its environment keeps it from running one more job.
local function has_own_room(queue)
  local env_limit = queue.environment.limit
  return (not queue.limit or queue.running < queue.limit) and (not env_limit or queue.running < env_limit)
end
