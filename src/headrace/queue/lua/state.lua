-- The state of queues and environments, as a unit of work: a script loads what it touches once, changes
-- the numbers here, and `save_all` writes them back, keeps the indexes true and emits the events.
-- Needs keys.lua and the generated pack_event.
local clock = redis.call('TIME')
-- In milliseconds, with the microseconds behind the point: jobs that arrive within one millisecond keep their order.
local NOW = tonumber(clock[1]) * 1000 + tonumber(clock[2]) / 1000

-- Lua prints numbers with 14 digits, too few for these.
local function whole(number) return string.format('%.0f', math.floor(number)) end
local function precise(number) return string.format('%.6f', number) end

local queues, touched_queues = {}, {}
local envs, touched_envs = {}, {}

local function env_of(E)
  local env = envs[E]
  if not env then
    local v = redis.call('HMGET', env_key(E), 'depth', 'running', 'limit', 'burst')
    env = { E = E, depth = tonumber(v[1] or 0), running = tonumber(v[2] or 0),
      limit = tonumber(v[3] or nil), burst = tonumber(v[4] or 1) }
    env.was_blocked = env.limit and env.running >= math.floor(env.limit * env.burst) or false
    envs[E] = env
    touched_envs[#touched_envs + 1] = env
  end
  return env
end

local function queue_of(E, Q)
  local name = E .. ':' .. Q
  local queue = queues[name]
  if not queue then
    -- Named as the columns of an event, so that the queue itself can be packed into one.
    local v = redis.call('HMGET', queue_key(E, Q), 'epoch', 'depth', 'scheduled', 'running', 'bytes',
      'limit', 'paused', 'closed', 'levels', 'org', 'project', 'env', 'queue', 'oldest', 'indexed')
    queue = { E = E, Q = Q, name = name, epoch = v[1], depth = tonumber(v[2] or 0),
      scheduled = tonumber(v[3] or 0), running = tonumber(v[4] or 0), bytes = tonumber(v[5] or 0),
      limit = tonumber(v[6] or nil), paused = v[7] == '1', closed = v[8] == '1',
      levels = tonumber(v[9] or 0), org = v[10], project = v[11], env = v[12], queue = v[13],
      oldest = tonumber(v[14] or nil), indexed = v[15], environment = env_of(E), ops = {} }
    queues[name] = queue
    touched_queues[#touched_queues + 1] = queue
  end
  return queue
end

-- Count one job for a verb. Waits and run times travel with the event of the verb.
local function count(queue, op, wait, run)
  local tally = queue.ops[#queue.ops]
  if not tally or tally.op ~= op then
    for _, known in ipairs(queue.ops) do
      if known.op == op then tally = known end
    end
    if not tally or tally.op ~= op then
      tally = { op = op, n = 0, waits = {}, runs = {} }
      queue.ops[#queue.ops + 1] = tally
    end
  end
  tally.n = tally.n + 1
  if wait then tally.waits[#tally.waits + 1] = whole(math.max(wait, 0)) end
  if run then tally.runs[#tally.runs + 1] = run end
end

-- Where jobs wait -------------------------------------------------------------------------------

-- Jobs of priority 0 wait in one sorted set by eligible time. Other priorities have a set each,
-- listed in `levels`, which does not exist for the many queues that use none.
local function add_ready(queue, J, at, priority)
  redis.call('ZADD', ready_key(queue.E, queue.Q, priority), precise(at), J)
  if priority ~= 0 and redis.call('ZADD', levels_key(queue.E, queue.Q), -priority, priority) == 1 then
    queue.levels = queue.levels + 1
  end
  queue.depth = queue.depth + 1
  queue.environment.depth = queue.environment.depth + 1
  if not queue.oldest or at < queue.oldest then queue.oldest = at end
end

local function drop_empty_level(queue, priority)
  if priority ~= 0 and redis.call('EXISTS', ready_key(queue.E, queue.Q, priority)) == 0 then
    redis.call('ZREM', levels_key(queue.E, queue.Q), priority)
    queue.levels = queue.levels - 1
  end
end

local function remove_ready(queue, J, priority)
  redis.call('ZREM', ready_key(queue.E, queue.Q, priority), J)
  drop_empty_level(queue, priority)
  queue.depth = queue.depth - 1
  queue.environment.depth = queue.environment.depth - 1
  queue.oldest_left = true
end

-- The priorities that have jobs, most urgent first. (An empty queue answers 0.)
local function levels_of(queue)
  if queue.levels == 0 then return { 0 } end
  local found = {}
  local zero = redis.call('EXISTS', ready_key(queue.E, queue.Q, 0)) == 1
  for _, text in ipairs(redis.call('ZRANGE', levels_key(queue.E, queue.Q), 0, -1)) do
    local priority = tonumber(text)
    if zero and priority < 0 then
      found[#found + 1], zero = 0, false
    end
    found[#found + 1] = priority
  end
  if zero then found[#found + 1] = 0 end
  return found
end

-- When the longest-waiting job became eligible; nil if nothing waits.
local function oldest_of(queue)
  local oldest
  for _, priority in ipairs(levels_of(queue)) do
    local at = redis.call('ZRANGE', ready_key(queue.E, queue.Q, priority), 0, 0, 'WITHSCORES')[2]
    if at and (not oldest or tonumber(at) < oldest) then oldest = tonumber(at) end
  end
  return oldest
end

local function add_scheduled(queue, J, due)
  redis.call('ZADD', SCHEDULED, precise(due), queue.E .. ':' .. J)
  queue.scheduled = queue.scheduled + 1
end

local function remove_scheduled(queue, J)
  redis.call('ZREM', SCHEDULED, queue.E .. ':' .. J)
  queue.scheduled = queue.scheduled - 1
end

-- A job waits (again): until it is due, or for its turn. Its TTL, if it has one, counts while it waits.
local function make_wait(queue, J, at, priority, expires)
  local EJ = queue.E .. ':' .. J
  if at > NOW then
    add_scheduled(queue, J, at)
    redis.call('HSET', job_key(EJ), 'state', 'scheduled', 'due', precise(at))
  else
    add_ready(queue, J, at, priority)
    redis.call('HSET', job_key(EJ), 'state', 'ready', 'due', precise(at))
  end
  if expires then redis.call('ZADD', EXPIRIES, expires, EJ) end
end

-- Who may run -----------------------------------------------------------------------------------

-- An environment may run its limit times its burst factor in all; none of its queues more than the
-- limit itself, so that one queue cannot take the burst for itself.
local function room_of(queue)
  local env = queue.environment
  local room = math.huge
  if queue.limit then room = queue.limit - queue.running end
  if env.limit then
    room = math.min(room, env.limit - queue.running, math.floor(env.limit * env.burst) - env.running)
  end
  return room
end

local function env_blocked(env)
  return env.limit ~= nil and env.running >= math.floor(env.limit * env.burst)
end

-- Put an environment into an index of environments. One that comes back starts where the least served one
-- is: it neither saves up turns while it is idle, nor waits for the others to catch up.
local function join(index, E)
  if not redis.call('ZSCORE', index, E) then
    redis.call('ZADD', index, redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2] or 0, E)
  end
end

-- The indexes hold what may run now and nothing else, so taking a job never has to search past what is
-- paused or at its limit: the environment's queues by age, the shard's environments by turns taken, and the
-- same per queue name for workers that serve some queues only. `indexed` remembers under which age the queue
-- stands there and whether its name is parked; while that stays the same, as when a job joins a backlog, nothing is
-- to do.
local function reindex_queue(queue)
  if queue.oldest_left then queue.oldest, queue.oldest_left = oldest_of(queue), nil end
  local env = queue.environment
  local own_room = math.min(queue.limit and queue.limit - queue.running or 1,
    env.limit and env.limit - queue.running or 1)
  local wanted = ''
  if queue.oldest and not queue.paused and own_room > 0 then
    wanted = (env_blocked(env) and 'parked ' or 'free ') .. precise(queue.oldest)
  end
  if wanted == (queue.indexed or '') then return end
  queue.indexed = wanted
  if wanted == '' then
    redis.call('ZREM', env_queues_key(queue.E), queue.Q)
    redis.call('ZREM', class_key(queue.Q), queue.E)
    redis.call('SREM', env_parked_key(queue.E), queue.Q)
    return
  end
  redis.call('ZADD', env_queues_key(queue.E), precise(queue.oldest), queue.Q)
  if env_blocked(env) then
    redis.call('ZREM', class_key(queue.Q), queue.E)
    redis.call('SADD', env_parked_key(queue.E), queue.Q)
  else
    join(class_key(queue.Q), queue.E)
  end
end

-- A full environment leaves the index; the queue names under which a worker met it while full are
-- parked, and come back with it. Each is parked at most once per blocking, so this is paid for.
local function reindex_env(env)
  if env.clean then return end
  env.clean = true
  local blocked = env_blocked(env)
  if not blocked and redis.call('EXISTS', env_queues_key(env.E)) == 1 then
    join(ENVS, env.E)
  else
    redis.call('ZREM', ENVS, env.E)
  end
  if env.was_blocked and not blocked then
    for _, Q in ipairs(redis.call('SMEMBERS', env_parked_key(env.E))) do
      local age = redis.call('ZSCORE', env_queues_key(env.E), Q)
      if age then
        join(class_key(Q), env.E)
        redis.call('HSET', queue_key(env.E, Q), 'indexed', 'free ' .. precise(tonumber(age)))
      end
    end
    redis.call('DEL', env_parked_key(env.E))
  end
end

-- Events ----------------------------------------------------------------------------------------

-- Odometers and the shard's event number always advance, so a switched-off or failing stream shows as missing
-- events later. Only the XADD may fail, and its error is dropped: an operation that happened must
-- not be reported as failed because nobody could write about it.
local function emit(queue, tally, maxlen, enabled)
  local odometer
  if tally.n > 0 then
    odometer = whole(redis.call('HINCRBY', queue_key(queue.E, queue.Q), 'o:' .. tally.op, tally.n))
  end
  local seq = redis.call('HINCRBY', META, 'seq', 1)
  if not enabled then return end
  local env = queue.environment
  queue.seq, queue.op, queue.n, queue.odometer = whole(seq), tally.op, tally.n, odometer
  queue.env_depth, queue.env_running, queue.env_limit = env.depth, env.running, env.limit
  queue.oldest_ms = queue.oldest and whole(queue.oldest)
  queue.waits, queue.runs = table.concat(tally.waits, ','), table.concat(tally.runs, ',')
  redis.pcall('XADD', METRICS, 'MAXLEN', '~', maxlen, '*', 'e', pack_event(queue))
end

-- Write back what the script changed. One event per queue and verb; a queue whose numbers changed without a
-- verb (a limit, a pause) gets a `resync`, which counts nothing and tells the new numbers.
local function save_all(maxlen)
  for _, queue in ipairs(touched_queues) do
    reindex_queue(queue)
    redis.call('HSET', queue_key(queue.E, queue.Q), 'depth', queue.depth, 'scheduled', queue.scheduled,
      'running', queue.running, 'bytes', queue.bytes, 'levels', queue.levels,
      'oldest', queue.oldest and precise(queue.oldest) or '', 'indexed', queue.indexed or '')
  end
  for _, env in ipairs(touched_envs) do
    redis.call('HSET', env_key(env.E), 'depth', env.depth, 'running', env.running)
    reindex_env(env)
  end
  local enabled = redis.call('GET', METRICS_ENABLED) ~= '0'
  for _, queue in ipairs(touched_queues) do
    for _, tally in ipairs(queue.ops) do emit(queue, tally, maxlen, enabled) end
    if queue.resync then emit(queue, { op = 'resync', n = 0, waits = {}, runs = {} }, maxlen, enabled) end
  end
end
