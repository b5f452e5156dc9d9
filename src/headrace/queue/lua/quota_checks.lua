-- Usage of an environment compared with its quotas of jobs and bytes in Valkey.
--@include keys, clock, env_usage

-- Return the quota that `jobs` and `bytes` more would exceed, and how much of it is used; nil: none.
local function find_exceeded_quota(queue, jobs, bytes)
  local quotas = queue.environment.quotas
  if not quotas or not (quotas.warm_jobs or quotas.warm_bytes) then return nil end
  local used_jobs, used_bytes = count_env_warm(queue)
  if quotas.warm_jobs and used_jobs + jobs > quotas.warm_jobs then return 'warm_jobs', used_jobs end
  if quotas.warm_bytes and used_bytes + bytes > quotas.warm_bytes then return 'warm_bytes', used_bytes end
  return nil
end

-- Request a larger share of a quota; `bytes` is the size of the job that does not fit, if there is one. Writes may fail
-- if the server is out of memory; the next job that does not fit requests it again.
local MAX_SHARE_REQUESTS = 1000
local function request_share(queue, name, bytes)
  if not queue.environment.quotas.is_share[name]
    or redis.call('SCARD', SHARE_REQUESTS) >= MAX_SHARE_REQUESTS then return end
  redis.pcall('SADD', SHARE_REQUESTS, queue.E)
  if bytes then redis.pcall('HSET', env_key(queue.E), 'share_need', format_int(bytes) .. ' ' .. format_int(NOW)) end
end

-- Return the fill ratio of the quotas (1: full), of jobs or bytes, whichever is higher.
local function compute_quota_fill_ratio(quotas, jobs, bytes)
  local ratio = 0
  if quotas.warm_jobs then ratio = jobs / math.max(quotas.warm_jobs, 0.5) end
  if quotas.warm_bytes then ratio = math.max(ratio, bytes / math.max(quotas.warm_bytes, 0.5)) end
  if quotas.warm_jobs == 0 or quotas.warm_bytes == 0 then ratio = math.max(ratio, 1) end
  return ratio
end
