-- Fair indexes: which environment, and which of its queues, is next.
--@include keys, clock, shard, ready, limits, wake

-- Self-clocked fair queueing. An index of environments is scored by the jobs that were dequeued for each. Its clock is
-- the score of the member that was last served as the first of the index. META keeps the clock of ENVS (`turn`) and of
-- each `class` index (`turn:Q`, removed when the index becomes empty).
local class_clocks = {} -- those that this script has changed

local function read_class_clock(Q)
  return class_clocks[Q] or tonumber(redis.call('HGET', META, 'turn:' .. Q) or 0)
end

-- Add an environment to an index, one job behind the last served member and never before the first: it gains nothing by
-- having been idle, and waits for at most one job of each of the others.
local function join_fair_index(index, E, clock)
  local lowest = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', index, 'NX', format_int(math.max(clock + 1, tonumber(lowest or 0))), E)
end

local function join_env_index(E)
  if redis.call('ZSCORE', ENVS, E) then return end
  join_fair_index(ENVS, E, load_shard().turn)
  set_signal(WAKE)
end

local function join_class_index(Q, E)
  if redis.call('ZSCORE', class_key(Q), E) then return end
  join_fair_index(class_key(Q), E, read_class_clock(Q))
  set_signal(wake_key(Q))
end

local function leave_class_index(Q, E)
  if redis.call('ZREM', class_key(Q), E) == 1 and redis.call('EXISTS', class_key(Q)) == 0 then
    redis.call('HDEL', META, 'turn:' .. Q)
    redis.pcall('DEL', wake_key(Q))
    class_clocks[Q], signals[wake_key(Q)] = nil, nil
  end
end

-- Update the indexes for a queue. They hold only what may run now, so that dequeue never searches past queues that are
-- paused or at a limit: the queues of an environment by the age of their oldest job, the environments of the shard, and
-- per queue name the environments that have such a queue.
-- The stored field `indexed` is '' (not indexed), 'free <age>' or 'parked <age>' (blocked: the environment is at its
-- limit). While it does not change, as when a job joins a backlog, there is nothing to do.
local function reindex_queue(queue)
  if queue.oldest_stale then queue.oldest, queue.oldest_stale = find_oldest(queue), nil end
  local env = queue.environment
  local wanted = ''
  queue.oldest_text = queue.oldest and format_float(queue.oldest) or ''
  if queue.oldest and not queue.paused and is_below_limits(queue) then
    wanted = (is_env_blocked(env) and 'parked ' or 'free ') .. queue.oldest_text
  end
  local before = queue.indexed or ''
  if wanted == before and queue.indexed then return end
  if wanted == '' or before == '' then env.queues_changed = true end
  queue.indexed = wanted
  if wanted == '' then
    redis.call('ZREM', env_queues_key(queue.E), queue.Q)
    leave_class_index(queue.Q, queue.E)
    redis.call('SREM', env_blocked_key(queue.E), queue.Q)
    return
  end
  redis.call('ZADD', env_queues_key(queue.E), queue.oldest_text, queue.Q)
  if is_env_blocked(env) then
    leave_class_index(queue.Q, queue.E)
    redis.call('SADD', env_blocked_key(queue.E), queue.Q)
  elseif before:sub(1, 5) ~= 'free ' then -- else the index has it
    join_class_index(queue.Q, queue.E)
  end
end

-- Update the index of environments. An environment at its limit is removed. Its queue names, which dequeue or
-- `reindex_queue` removed from their `class` index meanwhile, are added again when it is below the limit. Each name is
-- removed at most once per blocking, so the cost is bounded by that of dequeue.
local function reindex_env(env)
  local blocked = is_env_blocked(env)
  -- Changes only with the queues indexed under it, or when it reaches its limit or falls below.
  if env.index_current or not (env.queues_changed or env.was_blocked or blocked) then return end
  env.index_current = true
  if not blocked and redis.call('EXISTS', env_queues_key(env.E)) == 1 then
    join_env_index(env.E)
  else
    redis.call('ZREM', ENVS, env.E)
  end
  if env.was_blocked and not blocked then
    for _, Q in ipairs(redis.call('SMEMBERS', env_blocked_key(env.E))) do
      local age = redis.call('ZSCORE', env_queues_key(env.E), Q)
      if age then
        join_class_index(Q, env.E)
        redis.call('HSET', queue_key(env.E, Q), 'indexed', 'free ' .. format_float(tonumber(age)))
      end
    end
    redis.call('DEL', env_blocked_key(env.E))
  end
end
