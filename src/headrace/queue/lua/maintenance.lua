-- What time demands of a shard's jobs. Each function handles a bounded batch and returns its size; `save_all` must
-- follow.
--@include waiting, recovery, leases, quarantine

-- Whether a worker has begun this delivery. Only the last attempt says so: `unbegun` names the delivery until then.
local function has_begun(EJ)
  local v = redis.call('HMGET', job_key(EJ), 'unbegun', 'delivery')
  return v[1] ~= v[2]
end

-- Return jobs whose lease ended without a result to the head of their queue. A job whose last attempt ended this way
-- is buried: one that kills its worker must not do so for ever. A last attempt that no worker began does not count:
-- no job is buried without having run.
local function reclaim_ended_leases(at_most)
  local lapsed = redis.call('ZRANGEBYSCORE', LEASES, '-inf', whole(NOW), 'LIMIT', 0, at_most)
  for _, EJ in ipairs(lapsed) do
    local E, J = EJ:match('^(.*):([^:]*)$')
    local sound, job, state = is_sound(LEASES, EJ), nil, nil
    if sound then job, state = held_job(E, J) end
    local is_last = job and job.attempts >= job.max_attempts
    if not sound then -- quarantined
    elseif not job then
      misplaced(E, J, state)
      leave(LEASES, EJ)
    elseif is_last and has_begun(EJ) then
      end_lease(job)
      redis.call('HSET', job_key(EJ), 'error', 'The lease of attempt ' .. job.attempts
        .. ' ended without a result: its worker died or lost its connection.')
      make_dead(job)
    else
      end_lease(job)
      if is_last then redis.call('HINCRBY', job_key(EJ), 'attempts', -1) end
      make_wait(job.queue, J, job.due, job.priority, job.expires, job.detail)
      count(job.queue, 'reclaim')
    end
  end
  return #lapsed
end

-- Make scheduled jobs ready that are due.
local function release_due_jobs(at_most)
  local due = redis.call('ZRANGEBYSCORE', SCHEDULED, '-inf', whole(NOW), 'WITHSCORES', 'LIMIT', 0, at_most)
  for i = 1, #due, 2 do
    local EJ = due[i]
    local E, J = EJ:match('^(.*):([^:]*)$')
    local sound, v = is_sound(SCHEDULED, EJ), nil
    if sound then v = redis.call('HMGET', job_key(EJ), 'Q', 'priority', 'detail', 'state') end
    if not sound then -- quarantined
    elseif v[4] == 'scheduled' then
      local queue = queue_of(E, v[1])
      remove_scheduled(queue, J)
      add_ready(queue, J, tonumber(due[i + 1]), tonumber(v[2]), v[3])
      redis.call('HSET', job_key(EJ), 'state', 'ready')
      count(queue, 'release')
    else
      misplaced(E, J, v[4])
      leave(SCHEDULED, EJ)
    end
  end
  return #due / 2
end

-- Remove waiting jobs whose TTL has ended. (A running job is not removed; its TTL counts again when it comes back.)
-- Must come before the functions above in one script: they add jobs to `ready` only when `save_all` runs, and this
-- one removes them from there at once.
local function expire_overdue_jobs(at_most)
  local over = redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', whole(NOW), 'LIMIT', 0, at_most)
  for _, EJ in ipairs(over) do
    if is_sound(EXPIRIES, EJ) then remove_waiting(EJ, 'expire') end
  end
  return #over
end
