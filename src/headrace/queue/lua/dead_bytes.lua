-- Memory of dead jobs in Valkey.
--@include keys, clock

-- Bytes that a dead job takes besides its payload, about; and how many jobs are read to estimate a sum.
local DEAD_OVERHEAD = 512
local DEAD_SAMPLE = 1000

-- Sum the bytes of the dead jobs of a queue: scripts of older releases bury and remove jobs without counting them. The
-- sum of more than DEAD_SAMPLE jobs is an estimate.
local function sum_dead_bytes(queue)
  local key = dead_key(queue.E, queue.Q)
  local sample = redis.call('ZRANGE', key, 0, DEAD_SAMPLE - 1)
  local bytes = 0
  for _, J in ipairs(sample) do
    bytes = bytes + DEAD_OVERHEAD + tonumber(redis.call('HGET', job_key(queue.E .. ':' .. J), 'size') or 0)
  end
  if #sample == DEAD_SAMPLE then bytes = math.floor(bytes * redis.call('ZCARD', key) / DEAD_SAMPLE) end
  if bytes ~= queue.dead_bytes then queue.dead_bytes, queue.dead_changed = bytes, true end
  return bytes
end

-- Return the bytes of the dead jobs of a queue.
local function get_dead_bytes(queue) return queue.dead_bytes or sum_dead_bytes(queue) end

-- Count a dead job that was added (sign 1) or removed (-1).
local function count_dead_job(queue, size, sign)
  queue.dead_bytes = math.max(0, get_dead_bytes(queue) + sign * (size + DEAD_OVERHEAD))
  queue.dead_changed = true
end

local function save_dead_bytes(queue)
  if queue.dead_changed then
    redis.call('HSET', queue_key(queue.E, queue.Q), 'dead_bytes', format_int(queue.dead_bytes))
  end
end

-- Return whether jobs of `size` bytes fit beside the dead jobs. Only for clients without PostgreSQL: nothing else
-- removes dead jobs from Valkey there.
local function fits_beside_dead(queue, size, max_bytes)
  if get_dead_bytes(queue) == 0 or queue.warm_bytes + queue.dead_bytes + size <= max_bytes then return true end
  local dead = sum_dead_bytes(queue)
  return dead == 0 or queue.warm_bytes + dead + size <= max_bytes
end
