-- dequeue: lease up to n jobs of a shard: fair between environments, oldest queue first within an environment.
--@flags allow-oom
--@include quarantine, skip_tasks, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen, n, lease ms, nonce, whether settings must have been restored on this server ('': no check;
--            0: check every SETTINGS_CHECK_MS; 1: check now), number of excluded tasks, how many of them are orphaned (no
--            live worker has them), the names of the excluded tasks, orphaned ones first, then the queue names to serve
--            (Q); none: all
-- Returns    {queues as {org, project, env, queue}, jobs as {number of the queue, body, attempt, max attempts, lease
--            token, enqueued ms, waited ms}, 1 if jobs that the caller could lease are left, else 0}. Jobs of excluded
--            tasks are skipped (skip_tasks.lua) and do not count as left.
-- Errors     SETTINGS: settings were not restored on this server
-- A lease token is the delivery number and the nonce of the caller. The number alone is not unique: after a failover to
-- a replica that was behind, numbers repeat.
local n, lease_ms, nonce = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local excluded_count = tonumber(ARGV[7])
local FIRST_NAME = 9 + excluded_count

-- A server that restarted or took over may lack the latest settings, and must not run jobs of a queue that is paused.
-- The replication id is read only every SETTINGS_CHECK_MS: a failover takes longer, and a client that reconnects
-- passes 1.
local SETTINGS_CHECK_MS = 250
if ARGV[6] ~= '' then
  local v = redis.call('HMGET', META, 'settings_for', 'settings_seen')
  if not v[1] or ARGV[6] == '1' or math.abs(NOW - tonumber(v[2] or 0)) >= SETTINGS_CHECK_MS then
    if (redis.call('INFO', 'replication'):match('master_replid:(%x+)') or 'unknown') ~= v[1] then
      return redis.error_reply('SETTINGS what operators decided was not restored on this server yet')
    end
    redis.call('HSET', META, 'settings_seen', format_int(NOW))
  end
end
local jobs, queue_names = {}, {}
local shard_state = load_shard()

-- Delete a waiting job, and count it for `op`: expire if its TTL has passed and maintenance has not expired it yet, cancel
-- if it was to be cancelled while it ran, and a worker of an older release has made it wait again.
local function delete_job(queue, EJ, size, op)
  redis.call('DEL', job_key(EJ), body_key(EJ))
  remove_on_save(EXPIRIES, EJ)
  queue.warm_bytes = queue.warm_bytes - size
  count_op(queue, op)
end

-- Return the fields of a ready job that are needed to lease it; nil: it cannot be leased. It is removed from `ready` in
-- both cases.
local function load_ready_job(queue, J, at)
  local EJ = queue.E .. ':' .. J
  local v = redis.call('HMGET', job_key(EJ), 'attempts', 'max_attempts', 'enqueued', 'expires', 'size', 'detail',
    'state', 'cancel')
  if v[7] ~= 'ready' then
    place_by_state(queue.E, J, v[7])
    return mark_for_repair(queue.name)
  end
  remove_from_flow(queue, J, v[6])
  local attempts, max_attempts = tonumber(v[1] or nil), tonumber(v[2] or nil)
  local enqueued, size = tonumber(v[3] or nil), tonumber(v[5] or nil)
  if not (attempts and max_attempts and enqueued and size) then
    quarantine(ready_key(queue.E, queue.Q, 0), EJ, 'its job has fields that are not numbers')
    return mark_for_repair(queue.name)
  end
  if v[8] then return delete_job(queue, EJ, size, 'cancel') end
  if v[4] and tonumber(v[4]) <= NOW then return delete_job(queue, EJ, size, 'expire') end
  local body = redis.call('GET', body_key(EJ))
  if not body or body == '' then -- done, but a script failed before it removed the job
    redis.call('DEL', job_key(EJ))
    return mark_for_repair(queue.name)
  end
  return { EJ = EJ, J = J, at = at, body = body, attempt = attempts + 1, max_attempts = max_attempts,
    enqueued = enqueued, has_ttl = v[4] }
end

local function lease_job(queue, job)
  shard_state.delivery, shard_state.changed = shard_state.delivery + 1, true
  local token = format_int(shard_state.delivery) .. '-' .. nonce
  queue.in_flight[#queue.in_flight + 1] = job.J .. '\t' .. token
  if job.attempt < job.max_attempts then
    redis.call('HSET', job_key(job.EJ), 'state', 'running', 'delivery', token, 'attempts', job.attempt)
  else -- the last attempt counts once its worker has started the job (begin.lua)
    redis.call('HSET', job_key(job.EJ), 'state', 'running', 'delivery', token, 'attempts', job.attempt,
      'unbegun', token)
  end
  if job.has_ttl then remove_on_save(EXPIRIES, job.EJ) end
  queue.running = queue.running + 1
  queue.environment.running = queue.environment.running + 1
  local waited = math.max(math.floor(NOW - job.at), 0)
  count_op(queue, 'dequeue', waited)
  if not queue.number then
    queue_names[#queue_names + 1] = { queue.org, queue.project, queue.env, queue.queue }
    queue.number = #queue_names
  end
  jobs[#jobs + 1] = { queue.number, job.body, job.attempt, job.max_attempts, token, job.enqueued, waited }
end

local by_name = #ARGV >= FIRST_NAME

-- Add the dequeued jobs to the score of the environment in both indexes. Only the clock of the index that is served
-- advances. Called before the queue is removed from an index, so that the last job of an environment counts too.
local function count_turns(queue, taken)
  local env_turns = redis.call('ZADD', ENVS, 'XX', 'INCR', taken, queue.E)
  local class_turns = redis.call('ZADD', class_key(queue.Q), 'XX', 'INCR', taken, queue.E)
  if by_name then
    if class_turns then class_clocks[queue.Q] = tonumber(class_turns) - taken end
  elseif env_turns then
    shard_state.turn, shard_state.changed = tonumber(env_turns) - taken, true
  end
end

-- Lease jobs of one priority of a queue, given as job ids and eligible times in turns. They are the first ones of `ready`,
-- or with `by_id` any.
local function lease_found(queue, priority, found, by_id)
  local ready = ready_key(queue.E, queue.Q, priority)
  local taken, leasable, leases, ids = #found / 2, {}, {}, {}
  local until_ms = math.floor(NOW + lease_ms)
  for i = 1, #found, 2 do
    local job = load_ready_job(queue, found[i], tonumber(found[i + 1]))
    if by_id then ids[#ids + 1] = found[i] end
    if job then
      leasable[#leasable + 1] = job
      append_scored(leases, until_ms, job.EJ)
    end
  end
  call_in_chunks('ZADD', LEASES, leases)
  if #leases > 0 then signal_due(until_ms) end
  for _, job in ipairs(leasable) do lease_job(queue, job) end
  if by_id then
    call_in_chunks('ZREM', ready, ids)
  elseif taken > 0 then
    redis.call('ZREMRANGEBYRANK', ready, 0, taken - 1)
  else -- the index is wrong: the queue has no ready job
    queue.indexed = nil
    mark_for_repair(queue.name)
  end
  drop_empty_priority(queue, priority)
  queue.ready = queue.ready - taken
  queue.environment.depth = queue.environment.depth - taken
  queue.environment.index_current = nil
  queue.oldest_stale = true
  count_turns(queue, taken)
  reindex_queue(queue)
end

-- Lease up to `limit` jobs of a queue, none younger than `bound`, the age of the oldest job of the next queue.
local function take_jobs(queue, limit, bound)
  limit = math.max(0, math.min(limit, count_free_slots(queue)))
  local priority = list_priorities(queue)[1] or 0
  if queue.levels > 0 then limit, bound = math.min(limit, 1), '+inf' end
  local ready = ready_key(queue.E, queue.Q, priority)
  lease_found(queue, priority, redis.call('ZRANGEBYSCORE', ready, '-inf', bound, 'WITHSCORES', 'LIMIT', 0, limit))
end

-- Return the next queue to serve, and the age up to which it is next; nil: none.
local function find_next_queue()
  while true do
    local E = redis.call('ZRANGE', ENVS, 0, 0)[1]
    if not E then return nil end
    local first = redis.call('ZRANGE', env_queues_key(E), 0, 1, 'WITHSCORES')
    if first[1] then return load_queue(E, first[1]), first[4] or '+inf' end
    redis.call('ZREM', ENVS, E) -- it has no ready job: a script failed before it removed it
  end
end

-- Return how many environments have jobs to run in the queues that this worker serves.
local function count_competing_envs()
  if not by_name then return redis.call('ZCARD', ENVS) end
  local competing_envs = 0
  for i = FIRST_NAME, #ARGV do competing_envs = competing_envs + redis.call('ZCARD', class_key(ARGV[i])) end
  return competing_envs
end

-- As find_next_queue, among the queues that this worker serves. Scores of different names are not comparable (each name
-- counts since it last had jobs), so a name is drawn at random, weighted by its environments: no name starves another.
-- Within a name the environment with the lowest score is next.
local function find_next_queue_by_name()
  local drawn = math.random(math.max(1, count_competing_envs()))
  for i = FIRST_NAME, #ARGV do
    drawn = drawn - redis.call('ZCARD', class_key(ARGV[i]))
    if drawn <= 0 then
      local E = redis.call('ZRANGE', class_key(ARGV[i]), 0, 0)[1]
      return load_queue(E, ARGV[i]), '+inf'
    end
  end
  return nil
end

-- The server starts every script with the same seed; this one changes with every job.
math.randomseed(shard_state.delivery)
-- Each environment gets its share of this call at once; its score counts every job.
local competing_envs = count_competing_envs()
local share = math.max(1, math.floor(n / math.max(1, competing_envs)))
local next_queue, take = by_name and find_next_queue_by_name or find_next_queue, take_jobs
local search
if excluded_count > 0 then
  search = new_task_search(FIRST_NAME, tonumber(ARGV[8]), lease_found)
  next_queue, take = search.find_next_queue, search.take_jobs
end

-- Bounded, whatever is stored: each round leases jobs, blocks a queue or repairs an index.
for _ = 1, 4 * n + 100 do
  if #jobs == n then break end
  local queue, bound = next_queue()
  if not queue then break end
  if is_env_blocked(queue.environment) then
    reindex_queue(queue) -- removes its name from the `class` index
    reindex_env(queue.environment)
  else
    take(queue, math.min(share, n - #jobs), bound)
    reindex_env(queue.environment)
  end
end
if search then
  if #jobs == 0 then search.take_overdue(n) end
  search.level_scores()
end

-- Set the wake key of an index that still has members, for the next idle worker; else delete it. Return whether it has.
local function pass_on(index, key)
  if redis.call('EXISTS', index) == 1 then
    set_signal(key)
    return true
  end
  signals[key] = nil
  redis.pcall('DEL', key)
  return false
end

local is_more_left = not by_name and pass_on(ENVS, WAKE)
for i = FIRST_NAME, #ARGV do
  is_more_left = pass_on(class_key(ARGV[i]), wake_key(ARGV[i])) or is_more_left
end
if search and is_more_left then -- left are perhaps only jobs that the caller skips
  local queue = #jobs == n and search.find_next_queue()
  is_more_left = queue and not is_env_blocked(queue.environment)
end
save_all(ARGV[2])
return { queue_names, jobs, is_more_left and 1 or 0 }
