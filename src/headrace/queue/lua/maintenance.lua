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
  local ended = redis.call('ZRANGEBYSCORE', LEASES, '-inf', format_int(NOW), 'LIMIT', 0, at_most)
  for _, EJ in ipairs(ended) do
    local E, J = EJ:match('^(.*):([^:]*)$')
    local is_valid, job, state = is_valid_entry(LEASES, EJ), nil, nil
    if is_valid then job, state = find_leased_job(E, J) end
    local is_last = job and job.attempts >= job.max_attempts
    if not is_valid then -- quarantined
    elseif not job then
      place_by_state(E, J, state)
      remove_on_save(LEASES, EJ)
    elseif is_last and has_begun(EJ) then
      end_lease(job)
      redis.call('HSET', job_key(EJ), 'error', 'The lease of attempt ' .. job.attempts
        .. ' ended without a result: its worker died or lost its connection.')
      bury_job(job)
    else
      end_lease(job)
      if is_last then redis.call('HINCRBY', job_key(EJ), 'attempts', -1) end
      place_waiting(job.queue, J, job.due, job.priority, job.expires, job.detail)
      count_op(job.queue, 'reclaim')
    end
  end
  return #ended
end

-- Make scheduled jobs ready that are due.
local function release_due_jobs(at_most)
  local due = redis.call('ZRANGEBYSCORE', SCHEDULED, '-inf', format_int(NOW), 'WITHSCORES', 'LIMIT', 0, at_most)
  for i = 1, #due, 2 do
    local EJ = due[i]
    local E, J = EJ:match('^(.*):([^:]*)$')
    local is_valid, v = is_valid_entry(SCHEDULED, EJ), nil
    if is_valid then v = redis.call('HMGET', job_key(EJ), 'Q', 'priority', 'detail', 'state') end
    if not is_valid then -- quarantined
    elseif v[4] == 'scheduled' then
      local queue = load_queue(E, v[1])
      remove_scheduled(queue, J)
      add_ready(queue, J, tonumber(due[i + 1]), tonumber(v[2]), v[3])
      redis.call('HSET', job_key(EJ), 'state', 'ready')
      count_op(queue, 'release')
    else
      place_by_state(E, J, v[4])
      remove_on_save(SCHEDULED, EJ)
    end
  end
  return #due / 2
end

-- Remove waiting jobs whose TTL has ended. (A running job is not removed; its TTL counts again when it comes back.)
-- Must come before the functions above in one script: they add jobs to `ready` only when `save_all` runs, and this
-- one removes them from there at once.
local function expire_overdue_jobs(at_most)
  local overdue = redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', format_int(NOW), 'LIMIT', 0, at_most)
  for _, EJ in ipairs(overdue) do
    if is_valid_entry(EXPIRIES, EJ) then remove_waiting(EJ, 'expire') end
  end
  return #overdue
end
