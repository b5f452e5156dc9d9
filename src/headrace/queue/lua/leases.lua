-- Leased jobs: those that workers run.
--@include keys, clock, queues, places, dead_bytes

-- Return the queue and fields of a running job if `lease` is its lease token (nil: any); else nil and its state.
local function find_leased_job(E, J, lease)
  local v = redis.call('HMGET', job_key(E .. ':' .. J), 'state', 'delivery', 'Q', 'size', 'priority', 'expires',
    'attempts', 'max_attempts', 'due', 'detail', 'deferred_since', 'cancel')
  if v[1] ~= 'running' or (lease and v[2] ~= lease) then return nil, v[1] end
  local size, priority, due = tonumber(v[4] or nil), tonumber(v[5] or nil), tonumber(v[9] or nil)
  local attempts, max_attempts = tonumber(v[7] or nil), tonumber(v[8] or nil)
  -- An invalid job is quarantined when its lease has ended (maintenance.lua).
  if not (size and priority and due and attempts and max_attempts) then return nil, v[1] end
  return { queue = load_queue(E, v[3]), J = J, EJ = E .. ':' .. J, size = size, priority = priority, expires = v[6],
    attempts = attempts, max_attempts = max_attempts, due = due, detail = v[10] or '',
    lease = v[2], deferred_since = tonumber(v[11] or nil), is_cancelled = v[12] and true or false }
end

-- End the lease of a job; the caller moves the job to its next place.
local function end_lease(job)
  remove_on_save(LEASES, job.EJ)
  job.queue.running = job.queue.running - 1
  job.queue.environment.running = job.queue.environment.running - 1
end

-- Make a job dead: kept with its error until it is redriven or removed.
local function bury_job(job)
  count_dead_job(job.queue, job.size, 1)
  redis.call('ZADD', dead_key(job.queue.E, job.queue.Q), format_int(NOW), job.J)
  redis.call('SADD', BURIED, job.queue.name)
  redis.call('HSET', job_key(job.EJ), 'state', 'dead')
  -- Releases before 0.4 do not remove these when they redrive the job.
  if job.deferred_since or job.is_cancelled then redis.call('HDEL', job_key(job.EJ), 'deferred_since', 'cancel') end
  job.queue.warm_bytes = job.queue.warm_bytes - job.size
  count_op(job.queue, 'bury')
end
