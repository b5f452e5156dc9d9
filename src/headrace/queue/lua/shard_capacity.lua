-- Capacity of a shard: its byte cap and its reserve.
--@include keys, chunks, capacity, env_usage

-- Beyond its cap a shard has a reserve, a quarter of the cap, of which every environment has an equal share. So an
-- environment whose jobs fill the cap and are not run does not stop the others.
local RESERVE = 0.25

-- Return the bytes of the environment of a queue, its share of the reserve, the bytes that the reserve has left for all
-- environments, and the size of the reserve. Only called for a full shard: it costs several commands, and its function
-- is nested so that Lua does not create it in every run of the script.
local function compute_reserve_share(queue, shard_max)
  -- Return the number of environments of the shard, including that of this queue.
  local function count_environments(queue)
    if redis.call('HEXISTS', META, 'listed') == 0 then -- queues of older releases are not listed yet
      local found, members = {}, {}
      for _, name in ipairs(redis.call('SMEMBERS', QUEUES)) do
        local E = name:match('^(.*):[^:]*$')
        if not found[E] then
          found[E], members[#members + 1] = true, E
        end
      end
      call_in_chunks('SADD', ENVIRONMENTS, members)
      redis.call('HSET', META, 'listed', '1')
    end
    local missing = 1 - redis.call('SISMEMBER', ENVIRONMENTS, queue.E)
    local env_count = redis.call('SCARD', ENVIRONMENTS) + missing
    if missing == 1 and queue.epoch then redis.pcall('SADD', ENVIRONMENTS, queue.E) end -- made by an older release
    return env_count
  end

  local env = queue.environment
  local reserve = math.floor(shard_max * RESERVE)
  env.share = env.share or math.floor(reserve / count_environments(queue))
  local _, env_bytes = count_env_warm(queue)
  return env_bytes, env.share, shard_max + reserve - sum_shard_bytes(queue), reserve
end

-- Return the bytes that the shard accepts from this queue: what its cap leaves, or what the share of the environment
-- leaves.
local function count_free_shard_bytes(queue, shard_max)
  local free = shard_max - sum_shard_bytes(queue)
  local env_bytes, share, reserve_left = compute_reserve_share(queue, shard_max)
  return math.max(0, free, math.min(share - env_bytes, reserve_left))
end

-- Return whether `size` bytes fit into the shard; a `shard_max` of 0 is no cap.
local function bytes_fit_shard(queue, size, shard_max)
  return shard_max == 0 or sum_shard_bytes(queue) + size <= shard_max
    or size <= count_free_shard_bytes(queue, shard_max)
end

-- Return whether one more job fits into the shard. An empty queue accepts any job.
local function job_fits_shard(queue, size, shard_max)
  return count_warm(queue) == 0 or bytes_fit_shard(queue, size, shard_max)
end

-- Return the fill ratio of the shard for this queue (1: full). Above REFILL_BELOW the share of its environment counts.
local function compute_shard_fill_ratio(queue, shard_max)
  local ratio = sum_shard_bytes(queue) / shard_max
  if ratio < REFILL_BELOW then return ratio end
  local env_bytes, share, reserve_left, reserve = compute_reserve_share(queue, shard_max)
  if share <= 0 then return ratio end
  return math.min(ratio, math.max(env_bytes / share, 1 - reserve_left / reserve))
end
