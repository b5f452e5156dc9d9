-- What time demands of a shard's jobs. Each function handles a bounded batch and returns its size; `save_all` must
-- follow. Needs state.lua, leases.lua, remove.lua and quarantine.lua.

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

-- Whether the indexes hold a queue as they should: under its environment if it may run; if the environment has room too,
-- under its name, and the environment among those of the shard. `v` are fields as check_some_queues reads them.
local function is_indexed(E, Q, v)
  local env, indexed = env_of(E), v[3] or ''
  local queue = { environment = env, limit = tonumber(v[5] or nil), running = tonumber(v[6] or 0) }
  if tonumber(v[1] or 0) == 0 or v[4] == '1' or not has_own_room(queue) then return indexed == '' end
  if indexed == '' or not redis.call('ZSCORE', env_queues_key(E), Q) then return false end
  if env_blocked(env) then return true end -- dequeue parks its names, and takes it out, as it meets it
  return indexed:sub(1, 5) == 'free ' and redis.call('ZSCORE', class_key(Q), E) and redis.call('ZSCORE', ENVS, E)
    and redis.call('SISMEMBER', env_parked_key(E), Q) == 0
end

-- Put a queue into the indexes if it may run, else take it out. Its hash is written last: a script that fails before that
-- is followed by one that does it again.
local function index_again(E, Q)
  local queue = queue_of(E, Q)
  local env = queue.environment
  queue.indexed, queue.oldest_left = nil, true
  reindex_queue(queue)
  if not env_blocked(env) then redis.call('SREM', env_parked_key(E), Q) end
  env.clean, env.queues_changed = nil, true
  reindex_env(env)
  redis.call('HSET', queue_key(E, Q), 'oldest', queue.oldest_text, 'indexed', queue.indexed)
end

-- Look at some queues, others in each call. Must come after `save_all`.
--   * Those whose count of ready jobs is off are marked for repair: a script failed and could not say so.
--   * Those that the indexes lack, or hold without reason, are indexed again: the limits of their environment changed, and
--     scripts of older clients, which know no quotas, or a process that ended early did not see to it.
--   * Their environments are listed, which scripts of older clients do not do.
local function check_some_queues()
  local page = redis.call('SSCAN', QUEUES, redis.call('HGET', META, 'checked') or '0', 'COUNT', 10)
  local listed, members = {}, {}
  for _, name in ipairs(page[2]) do
    local E, Q = name:match('^(.*):([^:]*)$')
    if not listed[E] then
      listed[E], members[#members + 1] = true, E
    end
    local v = redis.call('HMGET', queue_key(E, Q), 'ready', 'levels', 'indexed', 'paused', 'limit', 'running')
    local found, levels = redis.call('ZCARD', ready_key(E, Q, 0)), redis.call('ZRANGE', levels_key(E, Q), 0, -1)
    for _, level in ipairs(levels) do found = found + redis.call('ZCARD', ready_key(E, Q, tonumber(level))) end
    if found ~= tonumber(v[1] or 0) or #levels ~= tonumber(v[2] or 0) then
      mark_for_repair(name)
    elseif not is_indexed(E, Q, v) then
      index_again(E, Q)
    end
  end
  in_chunks('SADD', ENVIRONMENTS, members)
  redis.call('HSET', META, 'checked', page[1])
end

-- Emit a tick event if the last one is at least `period_ms` old. History infers from ticks that nothing happened, and
-- that the last event before a silence was lost. Must not come between the functions above and `save_all`, which
-- writes `seq` as they read it.
-- Returns 1 if it ticked, and the milliseconds until the next tick.
local function emit_tick(maxlen, period_ms)
  local last = tonumber(redis.call('HGET', META, 'ticked') or nil)
  if last and last <= NOW and NOW - last < period_ms then return 0, period_ms - (NOW - last) end
  redis.call('HSET', META, 'ticked', whole(NOW))
  local seq = redis.call('HINCRBY', META, 'seq', 1)
  if redis.call('GET', METRICS_ENABLED) ~= '0' then
    local bound = stored_bound(4) or maxlen
    redis.pcall('XADD', METRICS, 'MAXLEN', '~', bound, '*', 'e', pack_event({ seq = whole(seq), op = 'tick', n = 0 }))
  end
  return 1, period_ms
end
