-- The bytes of dead jobs in Valkey.
--@include keys, clock

-- Dead jobs that Valkey keeps take memory as well: their payload, and about this much for the rest of each.
local DEAD_OVERHEAD = 512
local DEAD_SAMPLE = 1000

-- Sum up the bytes of a queue's dead jobs, for jobs that were buried or removed by scripts that do not count them. Of
-- more than a sample the sum is estimated.
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

-- The bytes of a queue's dead jobs in Valkey.
local function get_dead_bytes(queue) return queue.dead_bytes or sum_dead_bytes(queue) end

-- Count a dead job that came (1) or left (-1).
local function count_dead_job(queue, size, sign)
  queue.dead_bytes = math.max(0, get_dead_bytes(queue) + sign * (size + DEAD_OVERHEAD))
  queue.dead_changed = true
end

local function save_dead_bytes(queue)
  if queue.dead_changed then
    redis.call('HSET', queue_key(queue.E, queue.Q), 'dead_bytes', format_int(queue.dead_bytes))
  end
end

-- Whether the dead jobs of a queue leave room for a number of bytes. Only checked where no PostgreSQL takes them away.
local function fits_beside_dead(queue, size, max_bytes)
  if get_dead_bytes(queue) == 0 or queue.warm_bytes + queue.dead_bytes + size <= max_bytes then return true end
  local dead = sum_dead_bytes(queue)
  return dead == 0 or queue.warm_bytes + dead + size <= max_bytes
end
