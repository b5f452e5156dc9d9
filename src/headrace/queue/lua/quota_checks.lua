-- Whether jobs and bytes of an environment stay within its quotas.
--@include keys, clock, env_usage

-- The quota of the environment that so many more jobs and bytes in Valkey would exceed: its name, and what is used of it; nil:
-- none.
local function find_exceeded_quota(queue, jobs, bytes)
  local quotas = queue.environment.quotas
  if not quotas or not (quotas.warm_jobs or quotas.warm_bytes) then return nil end
  local used_jobs, used_bytes = count_env_warm(queue)
  if quotas.warm_jobs and used_jobs + jobs > quotas.warm_jobs then return 'warm_jobs', used_jobs end
  if quotas.warm_bytes and used_bytes + bytes > quotas.warm_bytes then return 'warm_bytes', used_bytes end
  return nil
end

-- Let the next round know that the environment's share of a quota is too small, and for a job of how many bytes, if that is why
-- it waits. May fail without harm where the server is out of memory: it is asked again.
local MAX_SHARE_REQUESTS = 1000
local function request_share(queue, name, bytes)
  if not queue.environment.quotas.is_share[name]
    or redis.call('SCARD', SHARE_REQUESTS) >= MAX_SHARE_REQUESTS then return end
  redis.pcall('SADD', SHARE_REQUESTS, queue.E)
  if bytes then redis.pcall('HSET', env_key(queue.E), 'share_need', format_int(bytes) .. ' ' .. format_int(NOW)) end
end

-- How full the quotas of the environment are: 1 is full.
local function compute_quota_fill_ratio(quotas, jobs, bytes)
  local ratio = 0
  if quotas.warm_jobs then ratio = jobs / math.max(quotas.warm_jobs, 0.5) end
  if quotas.warm_bytes then ratio = math.max(ratio, bytes / math.max(quotas.warm_bytes, 0.5)) end
  if quotas.warm_jobs == 0 or quotas.warm_bytes == 0 then ratio = math.max(ratio, 1) end
  return ratio
end
