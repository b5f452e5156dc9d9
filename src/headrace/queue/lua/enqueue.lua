-- enqueue: accept jobs into a queue, or answer that they must be spilled to PostgreSQL. Enqueueing an id again has no
-- effect.
--@first plain_enqueue
--@include recovery, waiting, dead_bytes, quota_checks, shard_capacity, save
-- KEYS[1]    hash of the queue (routes the script)
-- ARGV       prefix, maxlen, E, Q, org, project, env, queue, warm caps of the queue (jobs, bytes), byte cap of the
--            shard (0: none), delay in ms from which jobs are spilled ('': the client has no PostgreSQL), cold epoch
--            that the client read from PostgreSQL (0: none), 1 if bodies are sent, 1 if the enqueue rate has counted
--            these jobs or 2 if the client repeats a refused call in parts (then its refusal is not counted), then for
--            each job: J, payload bytes, delay ms, and with bodies: body, priority, ttl ms (0: none), max attempts
-- Returns    {epoch of the queue, cold epoch, now ms, answers, id of the PostgreSQL of the shard ('': unknown)}. An
--            answer per job: 1 (accepted), 0 (duplicate id), 2 (spill it), 3 (there is room: send its body)
-- Errors     CLOSED: the queue is closed. Without PostgreSQL: FULL (no room), DEADFULL (no room beside dead jobs), COLD
--            (cold mode), IDPENDING (only PostgreSQL knows whether a job of one of the ids exists). QUOTA <name> <environment|share> <limit> <used>. RATE <environment|share> <jobs per second>
--            <burst> <jobs of the call> <ms to wait>. An error refuses all jobs of the call.
local E, Q = ARGV[3], ARGV[4]
local shard_max, far_ms, client_cold_epoch = find_shard_cap(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local is_counted, is_merged = ARGV[15] == '1', ARGV[15] == '2'
local FIRST, STRIDE = 16, ARGV[14] == '1' and 7 or 3
local queue = load_queue(E, Q)
if queue.closed then return redis.error_reply('CLOSED this queue accepts no jobs') end

local max_items, max_bytes = find_caps(queue, ARGV[9], ARGV[10])

local quotas = queue.environment.quotas

-- Return jobs and bytes of this call, and the bytes of its largest job. With `only_new` without duplicates.
local function count_jobs(only_new)
  local items, bytes, largest, seen_ids = 0, 0, 0, {}
  for i = FIRST, #ARGV, STRIDE do
    local J, size = ARGV[i], tonumber(ARGV[i + 1])
    local EJ = E .. ':' .. J
    if not only_new or (not seen_ids[J] and (redis.call('EXISTS', body_key(EJ)) == 0 or not is_complete(EJ))) then
      items, bytes, largest = items + 1, bytes + size, math.max(largest, size)
    end
    seen_ids[J] = true
  end
  return items, bytes, largest
end

-- Return the level of the enqueue rate, a leaky bucket (GCRA). The level is a time, `rate_at`: each job moves it ahead
-- by the time that the rate allows for one job, and it may be ahead of now by the time of `burst` jobs. A stored level
-- that is farther ahead dates from a clock that was set back since, or from a lower rate.
local function read_rate_level()
  local rate = quotas.enqueue_rate
  if rate <= 0 then return NOW end
  local highest = NOW + (quotas.enqueue_burst or math.max(1, rate)) * 1000 / rate
  return math.min(highest, math.max(NOW, tonumber(redis.call('HGET', env_key(E), 'rate_at') or 0)))
end

-- Return the error reply if a quota of the environment refuses this call, else nil. A call is refused as a whole. The
-- functions are nested so that Lua does not create them in every run of the script.
local function check_quotas()
  local function describe_quota(name, used)
    local kind = quotas.is_share[name] and 'share' or 'environment'
    return { name, 'QUOTA', name, kind, format_int(quotas[name]), format_int(used) }
  end

  local function describe_rate(items)
    local rate = quotas.enqueue_rate
    local burst = quotas.enqueue_burst or math.max(1, rate)
    local wait = rate > 0 and read_rate_level() - NOW + (items - burst) * 1000 / rate or 1000
    if wait <= 0 then return nil end
    local kind = quotas.is_share.enqueue_rate and 'share' or 'environment'
    return { 'enqueue_rate', 'RATE', kind, rate, burst, items, format_int(math.ceil(wait)) }
  end

  -- Return the bytes of the largest job that could ever run, and which quota bounds it: that of the environment, or
  -- that of its project or organisation ('share'). The current share does not bound it: shares grow on request.
  local function find_max_job_bytes()
    if not quotas.is_share.warm_bytes then return quotas.warm_bytes, 'environment' end
    local org, project = E:match('^([^:]*):([^:]*)')
    local max_bytes_of_job
    for _, value in ipairs(redis.call('HMGET', META, 'shared_bytes:' .. org,
      'shared_bytes:' .. org .. ':' .. project)) do
      max_bytes_of_job = math.min(tonumber(value or nil) or math.huge, max_bytes_of_job or math.huge)
    end
    return max_bytes_of_job, 'share'
  end

  -- Return the name of the quota that is exceeded, followed by the words of the error; nil: none.
  local function find_exceeded(items, bytes, largest)
    if items == 0 then return nil end
    if quotas.queues and not queue.epoch then
      local used = redis.call('SCARD', env_names_key(E))
      if used >= quotas.queues then return describe_quota('queues', used) end
    end
    if not far_ms then
      local name, used = find_exceeded_quota(queue, items, bytes)
      if name then return describe_quota(name, used) end
    else
      local max_bytes_of_job, kind = find_max_job_bytes()
      if max_bytes_of_job and largest > max_bytes_of_job then
        local _, used = count_env_warm(queue) -- PostgreSQL could store the job, but it could never run
        return { 'warm_bytes', 'QUOTA', 'warm_bytes', kind, format_int(max_bytes_of_job), format_int(used) }
      end
    end
    return quotas.enqueue_rate and not is_counted and describe_rate(items) or nil
  end

  local exceeded = find_exceeded(count_jobs(false)) and find_exceeded(count_jobs(true))
  if not exceeded then return nil end
  request_share(queue, exceeded[1])
  -- Counted for metrics. A refusal does not create an environment.
  if queue.environment.exists and not is_merged then
    redis.pcall('HINCRBY', env_key(E), 'refused:' .. exceeded[1], 1)
  end
  return redis.error_reply(table.concat(exceeded, ' ', 2))
end

-- Return whether a job of this id is in PostgreSQL: 'c' (yes), 'p' (only PostgreSQL knows); nil: no, or its id was
-- generated (cold_ids.lua).
local function find_registered_id(J)
  local entry = queue.environment.has_cold_ids and redis.call('HGET', env_cold_ids_key(E), J)
  return entry and entry:sub(1, 1) or nil
end

-- Return the error reply if the jobs of this call do not all fit and the client has no PostgreSQL, else nil.
local function check_capacity()
  if far_ms then return nil end
  if queue.cold and queue.cold.on == 1 then
    return redis.error_reply('COLD jobs of this queue wait in PostgreSQL')
  end
  if queue.environment.has_cold_ids then
    for i = FIRST, #ARGV, STRIDE do
      if find_registered_id(ARGV[i]) == 'p' then return redis.error_reply('IDPENDING ' .. ARGV[i]) end
    end
  end
  local full_of_dead = false
  local function all_fit(items, bytes)
    if items == 0 then return true end
    full_of_dead = not fits_beside_dead(queue, bytes, max_bytes)
    if full_of_dead then return false end
    if items == 1 then
      return job_fits(queue, bytes, max_items, max_bytes) and job_fits_shard(queue, bytes, shard_max)
    end
    return count_warm(queue) + items <= max_items and queue.warm_bytes + bytes <= max_bytes
      and bytes_fit_shard(queue, bytes, shard_max)
  end
  if all_fit(count_jobs(false)) or all_fit(count_jobs(true)) then return nil end
  if full_of_dead then
    return redis.error_reply('DEADFULL the dead jobs of this queue take ' .. format_int(get_dead_bytes(queue)) .. ' of '
      .. format_int(max_bytes) .. ' bytes')
  end
  return redis.error_reply('FULL this queue holds ' .. count_warm(queue) .. ' jobs of ' .. max_items)
end

-- Return whether any job of this call has a body in Valkey. In cold mode usually none has: then one command replaces
-- one per job.
local function any_id_exists()
  local keys = {}
  for i = FIRST, #ARGV, STRIDE do keys[#keys + 1] = body_key(E .. ':' .. ARGV[i]) end
  for i = 1, #keys, 1000 do
    if redis.call('EXISTS', unpack(keys, i, math.min(i + 999, #keys))) > 0 then return true end
  end
  return false
end

local position, spilled, added = 0, {}, {}
local check_each_id = true

-- Mark the queue for repair if its count of ready jobs is wrong. A duplicate may be the repetition of a call that
-- failed after its jobs were added to `ready` and before they were counted.
local is_count_checked = false
local function check_ready_count()
  if is_count_checked then return end
  is_count_checked = true
  local found, pending = redis.call('ZCARD', ready_key(E, Q, 0)), 0
  local levels = redis.call('ZRANGE', levels_key(E, Q), 0, -1)
  for _, level in ipairs(levels) do found = found + redis.call('ZCARD', ready_key(E, Q, tonumber(level))) end
  for _, members in pairs(queue.added) do pending = pending + #members / 2 end
  if found ~= queue.ready - pending or #levels ~= queue.levels then mark_for_repair(queue.name) end
end

-- Return whether a job of this id exists.
local function is_duplicate(J)
  if spilled[J] or added[J] then return true end
  if not is_complete(E .. ':' .. J) then return false end
  check_ready_count()
  return true
end

-- Accept one job; return its answer.
local function accept(J, size, delay, body, priority, ttl, max_attempts)
  local EJ = E .. ':' .. J
  local cold_mode = queue.cold and queue.cold.on == 1
  -- Jobs of one call keep their order: 1/4096 ms apart, less than it takes to accept one.
  local at = NOW + delay + position / 4096
  position = position + 1
  local full = far_ms and (delay >= far_ms or cold_mode or not job_fits(queue, size, max_items, max_bytes)
    or not job_fits_shard(queue, size, shard_max))
  local exceeded = far_ms and not full and find_exceeded_quota(queue, 1, size)
  if exceeded then request_share(queue, exceeded, size) end
  local registered = not full and not exceeded and STRIDE == 7 and find_registered_id(J)
  if registered == 'c' then return 0 end
  if full or exceeded or registered then
    if spilled[J] or (check_each_id and redis.call('EXISTS', body_key(EJ)) == 1 and is_duplicate(J)) then return 0 end
    spilled[J] = true
    -- A job that is spilled only because of its id finds room: if PostgreSQL stores it, sync_cold enters cold mode.
    if delay < far_ms and not cold_mode and not registered then enter_cold_mode(queue, max_items, max_bytes) end
    return 2
  end
  if STRIDE == 3 then return 3 end
  if spilled[J] then return 0 end
  queue.in_flight[#queue.in_flight + 1] = J
  if not redis.call('SET', body_key(EJ), body, 'NX') then
    if is_duplicate(J) then return 0 end
    redis.call('SET', body_key(EJ), body)
  end
  added[J] = true
  local detail = body:match('^[^\t]*\t([^\n]*)')
  redis.call('HSET', job_key(EJ), 'Q', Q, 'size', size, 'state', delay > 0 and 'scheduled' or 'ready',
    'enqueued', format_int(NOW), 'due', format_float(at), 'priority', priority, 'attempts', 0,
    'max_attempts', max_attempts, 'detail', detail)
  if ttl > 0 then
    redis.call('HSET', job_key(EJ), 'expires', format_int(NOW + ttl))
    redis.call('ZADD', EXPIRIES, format_int(NOW + ttl), EJ)
  end
  if delay > 0 then add_scheduled(queue, J, at) else add_ready(queue, J, at, priority, detail) end
  queue.warm_bytes = queue.warm_bytes + size
  count_op(queue, 'enqueue')
  return 1
end

local refusal = quotas and check_quotas() or check_capacity()
if refusal then return refusal end
if not queue.epoch then create_queue(queue, ARGV[5], ARGV[6], ARGV[7], ARGV[8]) end
-- PostgreSQL closed the epoch that Valkey still has, and the mover has not reopened the queue. Adopt the new epoch, so
-- that spills are accepted again; a late `leave_cold` for the old epoch is refused.
if queue.cold and queue.cold.on == 1 and client_cold_epoch > queue.cold.epoch then
  queue.cold.epoch, queue.cold_changed = client_cold_epoch, true
end
if far_ms and queue.cold and queue.cold.on == 1 then check_each_id = any_id_exists() end
local answers = {}
for i = FIRST, #ARGV, STRIDE do
  answers[#answers + 1] = accept(ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3],
    tonumber(ARGV[i + 4] or nil), tonumber(ARGV[i + 5] or nil), ARGV[i + 6])
end
if quotas and quotas.enqueue_rate and not is_counted then
  local counted_jobs = 0
  for _, answer in ipairs(answers) do
    if answer ~= 0 then counted_jobs = counted_jobs + 1 end
  end
  if counted_jobs > 0 then
    redis.call('HSET', env_key(E), 'rate_at',
      format_float(read_rate_level() + counted_jobs * 1000 / quotas.enqueue_rate))
  end
end
save_all(ARGV[2])
return { queue.epoch, queue.cold and queue.cold.epoch or 1, format_float(NOW), answers, load_shard().postgres }
