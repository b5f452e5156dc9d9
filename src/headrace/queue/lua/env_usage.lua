-- Usage of an environment: its jobs and bytes in Valkey.
--@include keys, clock, queues, capacity

local RECOUNT_MS = 5000

-- Make `bytes` and `jobs` of an environment the sums of its queues before this script. Scripts of older clients change
-- queues without changing these sums, so they are computed again every RECOUNT_MS.
local function refresh_env_usage(env)
  if env.usage_checked then return end
  env.usage_checked = true
  local refreshed_at = env.counted_at
  if not env.exists or (env.bytes and env.jobs and refreshed_at and refreshed_at <= NOW
    and NOW - refreshed_at < RECOUNT_MS) then return end
  env.bytes, env.jobs = 0, 0
  for _, Q in ipairs(redis.call('SMEMBERS', env_names_key(env.E))) do
    local queue = queues[env.E .. ':' .. Q]
    if queue then
      env.bytes, env.jobs = env.bytes + math.max(0, queue.bytes_before), env.jobs + queue.warm_before
    else
      local v = redis.call('HMGET', queue_key(env.E, Q), 'warm_bytes', 'ready', 'warm_scheduled', 'running')
      env.bytes = env.bytes + math.max(0, tonumber(v[1] or 0))
      env.jobs = env.jobs + tonumber(v[2] or 0) + tonumber(v[3] or 0) + tonumber(v[4] or 0)
    end
  end
  -- May fail if the server is out of memory; then the next script computes them again.
  redis.pcall('HSET', env_key(env.E), 'bytes', format_int(env.bytes), 'jobs', format_int(env.jobs),
    'counted', format_int(NOW))
end

-- Return jobs and bytes of the environment of a queue, including changes of this script, which changes no other queue.
local function count_env_warm(queue)
  local env = queue.environment
  refresh_env_usage(env)
  return env.jobs + count_warm(queue) - queue.warm_before, env.bytes + queue.warm_bytes - queue.bytes_before
end
