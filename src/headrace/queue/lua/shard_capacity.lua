-- How much fits into a shard.
--@include keys, chunks, capacity, env_usage

-- Beyond its cap the shard has a reserve, a quarter of the cap, of which every environment has an equal share: one whose
-- jobs wait unserved and fill the cap does not keep the others from running.
local RESERVE = 0.25

-- What the environment of a queue holds and may hold of a full shard, and what the reserve has left for all of them. Only
-- needed while the shard is full: it may cost some calls, and its functions are in it so that Lua does not create them in
-- every run of the script.
local function compute_reserve_share(queue, shard_max)
  -- How many environments the shard has, that of this queue included.
  local function count_environments(queue)
    if redis.call('HEXISTS', META, 'listed') == 0 then -- queues of older scripts are in no list of environments
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
    if missing == 1 and queue.epoch then redis.pcall('SADD', ENVIRONMENTS, queue.E) end -- made by an older script
    return env_count
  end

  local env = queue.environment
  local reserve = math.floor(shard_max * RESERVE)
  env.share = env.share or math.floor(reserve / count_environments(queue))
  local _, env_bytes = count_env_warm(queue)
  return env_bytes, env.share, shard_max + reserve - sum_shard_bytes(queue), reserve
end

-- Bytes that the shard still takes from this queue: what its cap leaves, or what the share of the environment leaves.
local function count_free_shard_bytes(queue, shard_max)
  local free = shard_max - sum_shard_bytes(queue)
  local env_bytes, share, reserve_left = compute_reserve_share(queue, shard_max)
  return math.max(0, free, math.min(share - env_bytes, reserve_left))
end

-- Whether a number of bytes more fits into the shard; 0: no cap.
local function bytes_fit_shard(queue, size, shard_max)
  return shard_max == 0 or sum_shard_bytes(queue) + size <= shard_max
    or size <= count_free_shard_bytes(queue, shard_max)
end

-- Whether one more job fits into the shard. An empty queue always takes one.
local function job_fits_shard(queue, size, shard_max)
  return count_warm(queue) == 0 or bytes_fit_shard(queue, size, shard_max)
end

-- How full the shard is for this queue: 1 is full. Once the cap is reached, its environment's share counts.
local function compute_shard_fill_ratio(queue, shard_max)
  local ratio = sum_shard_bytes(queue) / shard_max
  if ratio < REFILL_BELOW then return ratio end
  local env_bytes, share, reserve_left, reserve = compute_reserve_share(queue, shard_max)
  if share <= 0 then return ratio end
  return math.min(ratio, math.max(env_bytes / share, 1 - reserve_left / reserve))
end
