-- Waiting jobs: ready, or scheduled for later.
--@include keys, clock, chunks, queues, ready, places, wake

local function add_scheduled(queue, J, due)
  redis.call('ZADD', SCHEDULED, format_float(due), queue.E .. ':' .. J)
  queue.warm_scheduled = queue.warm_scheduled + 1
  signal_due(due)
end

local function remove_scheduled(queue, J)
  remove_on_save(SCHEDULED, queue.E .. ':' .. J)
  queue.warm_scheduled = queue.warm_scheduled - 1
end

-- Delete a job that was to be cancelled while it ran (cancel.lua), instead of making it wait again.
local function remove_cancelled(job)
  redis.call('DEL', job_key(job.EJ), body_key(job.EJ))
  job.queue.warm_bytes = job.queue.warm_bytes - job.size
  count_op(job.queue, 'cancel')
end

-- Make a job whose lease has ended wait again, and count `op`: scheduled if `at` is later than now, else ready. Its TTL,
-- if any, applies while it waits. `attempts` are those that count so far. `deferred_since` is kept only by a defer. A job
-- that was to be cancelled is deleted instead, and counted for `cancel` too.
local function wait_again(job, at, op, attempts, deferred_since)
  count_op(job.queue, op)
  if job.is_cancelled then return remove_cancelled(job) end
  local state = at > NOW and 'scheduled' or 'ready'
  if state == 'scheduled' then
    add_scheduled(job.queue, job.J, at)
  else
    add_ready(job.queue, job.J, at, job.priority, job.detail)
  end
  local fields = { 'state', state, 'due', format_float(at), 'attempts', attempts }
  if deferred_since then append_scored(fields, 'deferred_since', format_int(deferred_since)) end
  redis.call('HSET', job_key(job.EJ), unpack(fields))
  if job.deferred_since and not deferred_since then redis.call('HDEL', job_key(job.EJ), 'deferred_since') end
  if job.expires then redis.call('ZADD', EXPIRIES, job.expires, job.EJ) end
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
