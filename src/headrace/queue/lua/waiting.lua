-- Jobs that wait, whether ready or scheduled.
--@include keys, clock, queues, ready, places

local function add_scheduled(queue, J, due)
  redis.call('ZADD', SCHEDULED, format_float(due), queue.E .. ':' .. J)
  queue.warm_scheduled = queue.warm_scheduled + 1
end

local function remove_scheduled(queue, J)
  remove_on_save(SCHEDULED, queue.E .. ':' .. J)
  queue.warm_scheduled = queue.warm_scheduled - 1
end

-- A job waits (again): until it is due, or for its turn. Its TTL, if it has one, counts while it waits.
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

-- Take a waiting job out for good.
local function remove_waiting(EJ, op)
  local E, J = EJ:match('^(.*):([^:]*)$')
  local v = redis.call('HMGET', job_key(EJ), 'state', 'Q', 'priority', 'size', 'detail')
  if v[1] ~= 'ready' and v[1] ~= 'scheduled' then -- a script failed that should have removed it
    redis.call('ZREM', EXPIRIES, EJ)
    return
  end
  local queue = load_queue(E, v[2])
  redis.call('DEL', job_key(EJ), body_key(EJ))
  if v[1] == 'ready' then
    remove_ready(queue, J, tonumber(v[3]), v[5])
  else -- at once: maintenance makes due jobs ready in the same script
    redis.call('ZREM', SCHEDULED, EJ)
    queue.warm_scheduled = queue.warm_scheduled - 1
  end
  redis.call('ZREM', EXPIRIES, EJ)
  queue.warm_bytes = queue.warm_bytes - tonumber(v[4])
  count_op(queue, op)
end
