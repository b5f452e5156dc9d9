-- Jobs of a shard whose time has come: ended leases, due jobs, passed TTLs. Each function handles a bounded batch and
-- returns its size; `save_all` must follow.
--@include waiting, recovery, leases, quarantine

-- Return whether a worker started this delivery. Only known of the last attempt: `unbegun` is its lease token until
-- then.
local function has_begun(EJ)
  local v = redis.call('HMGET', job_key(EJ), 'unbegun', 'delivery')
  return v[1] ~= v[2]
end

-- Move jobs whose lease ended without a result back to the head of their queue. A job at its last attempt is buried:
-- one that kills its worker must not do so forever. A last attempt that no worker started does not count, so no job is
-- buried without having run.
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
      wait_again(job, job.due, 'reclaim', is_last and job.attempts - 1 or job.attempts)
    end
  end
  return #ended
end

-- Make scheduled jobs that are due ready.
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

-- Delete waiting jobs whose TTL has passed. (A running job stays; its TTL applies again when it waits again.) Must be
-- called before the functions above: they add jobs to `ready` in `save_all`, while this one removes them at once.
local function expire_overdue_jobs(at_most)
  local overdue = redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', format_int(NOW), 'LIMIT', 0, at_most)
  for _, EJ in ipairs(overdue) do
    if is_valid_entry(EXPIRIES, EJ) then remove_waiting(EJ, 'expire') end
  end
  return #overdue
end
