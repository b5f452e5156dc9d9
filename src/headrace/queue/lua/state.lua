-- How a job's place changes. Every script moves jobs through these, so counters and indexes
-- cannot drift from the sets they count. Needs keys.lua.
local clock = redis.call('TIME')
local NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

-- Lua prints numbers with 14 digits; a millisecond time has 13. Whole numbers go through here so
-- that no score ever turns into 1.7e+12.
local function whole(number) return string.format('%.0f', number) end

-- Keep the two fairness indexes true after the head of a queue may have changed: the environment's
-- queues by age of their head, and the shard's environments by virtual time.
local function reindex(E, Q)
  local head = redis.call('ZRANGE', ready_key(E, Q), 0, 0, 'WITHSCORES')
  if head[1] then
    redis.call('ZADD', env_queues_key(E), head[2], Q)
    -- An environment that comes back starts where the least served one is: it neither saves up
    -- turns while idle nor has to wait for the others to catch up.
    if not redis.call('ZSCORE', ENVS, E) then
      local first = redis.call('ZRANGE', ENVS, 0, 0, 'WITHSCORES')
      redis.call('ZADD', ENVS, first[2] or 0, E)
    end
  elseif redis.call('ZREM', env_queues_key(E), Q) == 1
    and redis.call('EXISTS', env_queues_key(E)) == 0 then
    redis.call('ZREM', ENVS, E)
  end
end

local function make_ready(E, Q, J, at)
  redis.call('ZADD', ready_key(E, Q), whole(at), J)
  redis.call('HINCRBY', env_key(E), 'depth', 1)
  redis.call('HSET', job_key(E .. ':' .. J), 'state', 'ready', 'due', whole(at))
  reindex(E, Q)
end

local function make_scheduled(E, Q, J, due)
  redis.call('ZADD', SCHEDULED, whole(due), E .. ':' .. J)
  redis.call('HINCRBY', queue_key(E, Q), 'scheduled', 1)
  redis.call('HSET', job_key(E .. ':' .. J), 'state', 'scheduled', 'due', whole(due))
end

-- The job leaves its worker, whatever comes next.
local function end_lease(E, Q, EJ)
  redis.call('ZREM', LEASES, EJ)
  redis.call('HINCRBY', queue_key(E, Q), 'running', -1)
  redis.call('HINCRBY', env_key(E), 'running', -1)
end

-- The queue of a job if `lease` is the delivery that holds it now, else nil.
local function leased_queue(EJ, lease)
  local held = redis.call('HMGET', job_key(EJ), 'state', 'delivery', 'Q')
  if held[1] == 'running' and held[2] == lease then return held[3] end
  return nil
end
