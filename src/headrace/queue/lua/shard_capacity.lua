-- How much fits into a shard.
--@include keys, chunks, capacity, env_usage

-- Beyond its cap the shard has a reserve, a quarter of the cap, of which every environment has an equal share: one whose
-- jobs wait unserved and fill the cap does not keep the others from running.
local RESERVE = 0.25

-- What the environment of a queue holds and may hold of a full shard, and what the reserve has left for all of them. Only
-- needed while the shard is full: it may cost some calls, and its functions are in it so that Lua does not create them in
-- every run of the script.
local function share_of(queue, shard_max)
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
      in_chunks('SADD', ENVIRONMENTS, members)
      redis.call('HSET', META, 'listed', '1')
    end
    local missing = 1 - redis.call('SISMEMBER', ENVIRONMENTS, queue.E)
    local sharers = redis.call('SCARD', ENVIRONMENTS) + missing
    if missing == 1 and queue.epoch then redis.pcall('SADD', ENVIRONMENTS, queue.E) end -- made by an older script
    return sharers
  end

  local env = queue.environment
  local reserve = math.floor(shard_max * RESERVE)
  env.share = env.share or math.floor(reserve / count_environments(queue))
  local _, held = held_by_environment(queue)
  return held, env.share, shard_max + reserve - shard_used(queue), reserve
end

-- Bytes that the shard still takes from this queue: what its cap leaves, or what the share of the environment leaves.
local function shard_room(queue, shard_max)
  local free = shard_max - shard_used(queue)
  local held, share, reserve_left = share_of(queue, shard_max)
  return math.max(0, free, math.min(share - held, reserve_left))
end

-- Whether a number of bytes more fits into the shard; 0: no cap.
local function shard_takes(queue, size, shard_max)
  return shard_max == 0 or shard_used(queue) + size <= shard_max or size <= shard_room(queue, shard_max)
end

-- Whether one more job fits into the shard. An empty queue always takes one.
local function shard_fits(queue, size, shard_max)
  return held_by(queue) == 0 or shard_takes(queue, size, shard_max)
end

-- How full the shard is for this queue: 1 is full. Once the cap is reached, its environment's share counts.
local function shard_fullness(queue, shard_max)
  local full = shard_used(queue) / shard_max
  if full < REFILL_BELOW then return full end
  local held, share, reserve_left, reserve = share_of(queue, shard_max)
  if share <= 0 then return full end
  return math.min(full, math.max(held / share, 1 - reserve_left / reserve))
end
