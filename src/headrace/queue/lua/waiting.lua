-- Waiting jobs: ready, or scheduled for later.
--@include keys, clock, queues, ready, places, wake

local function add_scheduled(queue, J, due)
  redis.call('ZADD', SCHEDULED, format_float(due), queue.E .. ':' .. J)
  queue.warm_scheduled = queue.warm_scheduled + 1
  signal_due(due)
end

local function remove_scheduled(queue, J)
  remove_on_save(SCHEDULED, queue.E .. ':' .. J)
  queue.warm_scheduled = queue.warm_scheduled - 1
end

-- Make a job wait: scheduled if `at` is later than now, else ready. Its TTL, if any, applies while it waits.
local function place_waiting(queue, J, at, priority, expires, detail)
  local EJ = queue.E .. ':' .. J
  if at > NOW then
    add_scheduled(queue, J, at)
    redis.call('HSET', job_key(EJ), 'state', 'scheduled', 'due', format_float(at))
  else
    add_ready(queue, J, at, priority, detail)
    redis.call('HSET', job_key(EJ), 'state', 'ready', 'due', format_float(at))
  end
  if expires then redis.call('ZADD', EXPIRIES, expires, EJ) end
end

-- Delete a waiting job, and count it for `op`.
local function remove_waiting(EJ, op)
  local E, J = EJ:match('^(.*):([^:]*)$')
  local v = redis.call('HMGET', job_key(EJ), 'state', 'Q', 'priority', 'size', 'detail')
  if v[1] ~= 'ready' and v[1] ~= 'scheduled' then -- left by a script that failed
    redis.call('ZREM', EXPIRIES, EJ)
    return
  end
  local queue = load_queue(E, v[2])
  redis.call('DEL', job_key(EJ), body_key(EJ))
  if v[1] == 'ready' then
    remove_ready(queue, J, tonumber(v[3]), v[5])
  else -- not `remove_scheduled`: the same script may make due jobs ready before `save_all`
    redis.call('ZREM', SCHEDULED, EJ)
    queue.warm_scheduled = queue.warm_scheduled - 1
  end
  redis.call('ZREM', EXPIRIES, EJ)
  queue.warm_bytes = queue.warm_bytes - tonumber(v[4])
  count_op(queue, op)
end
