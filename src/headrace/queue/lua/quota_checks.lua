-- Whether jobs and bytes of an environment stay within its quotas.
--@include keys, clock, env_usage

-- The quota of the environment that so many more jobs and bytes in Valkey would exceed: its name, and what is used of it; nil:
-- none.
local function exceeded_quota(queue, jobs, bytes)
  local quotas = queue.environment.quotas
  if not quotas or not (quotas.warm_jobs or quotas.warm_bytes) then return nil end
  local held_jobs, held_bytes = held_by_environment(queue)
  if quotas.warm_jobs and held_jobs + jobs > quotas.warm_jobs then return 'warm_jobs', held_jobs end
  if quotas.warm_bytes and held_bytes + bytes > quotas.warm_bytes then return 'warm_bytes', held_bytes end
  return nil
end

-- Let the next round know that the environment's share of a quota is too small, and for a job of how many bytes, if that is why
-- it waits. May fail without harm where the server is out of memory: it is asked again.
local MOST_ASKING = 1000
local function ask_for_share(queue, name, bytes)
  if not queue.environment.quotas.is_share[name] or redis.call('SCARD', ASKING) >= MOST_ASKING then return end
  redis.pcall('SADD', ASKING, queue.E)
  if bytes then redis.pcall('HSET', env_key(queue.E), 'share_need', whole(bytes) .. ' ' .. whole(NOW)) end
end

-- How full the quotas of the environment are: 1 is full.
local function quota_fullness(quotas, jobs, bytes)
  local full = 0
  if quotas.warm_jobs then full = jobs / math.max(quotas.warm_jobs, 0.5) end
  if quotas.warm_bytes then full = math.max(full, bytes / math.max(quotas.warm_bytes, 0.5)) end
  if quotas.warm_jobs == 0 or quotas.warm_bytes == 0 then full = math.max(full, 1) end
  return full
end
