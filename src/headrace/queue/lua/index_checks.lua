-- Check counters and fair indexes of some queues in each call of maintenance.
--@include keys, chunks, queues, recovery, fair_index

-- Return whether the indexes are correct for a queue. A queue that may run is in the index of its environment; if the
-- environment is below its limit too, the environment is in ENVS and in the `class` index of the queue name. `v` are
-- fields as check_some_queues reads them.
local function is_index_correct(E, Q, v)
  local env, indexed = load_env(E), v[3] or ''
  local queue = { environment = env, limit = tonumber(v[5] or nil), running = tonumber(v[6] or 0) }
  if tonumber(v[1] or 0) == 0 or v[4] == '1' or not is_below_limits(queue) then return indexed == '' end
  if indexed == '' or not redis.call('ZSCORE', env_queues_key(E), Q) then return false end
  if is_env_blocked(env) then return true end -- dequeue removes the environment and its names when it finds them
  return indexed:sub(1, 5) == 'free ' and redis.call('ZSCORE', class_key(Q), E) and redis.call('ZSCORE', ENVS, E)
    and redis.call('SISMEMBER', env_blocked_key(E), Q) == 0
end

-- Add a queue to the indexes if it may run, else remove it. Its hash is written last: if the script fails before that,
-- the next one repeats it.
local function rebuild_index(E, Q)
  local queue = load_queue(E, Q)
  local env = queue.environment
  queue.indexed, queue.oldest_stale = nil, true
  reindex_queue(queue)
  if not is_env_blocked(env) then redis.call('SREM', env_blocked_key(E), Q) end
  env.index_current, env.queues_changed = nil, true
  reindex_env(env)
  redis.call('HSET', queue_key(E, Q), 'oldest', queue.oldest_text, 'indexed', queue.indexed)
end

-- Check about ten queues, the next ones with each call. Must be called after `save_all`.
--   * A queue whose count of ready jobs is wrong is marked for repair: a script failed and could not mark it.
--   * A queue whose indexes are wrong is indexed again: the limits of its environment changed, and the indexes were not
--     updated by scripts of older clients, which have no quotas, or by a process that ended early.
--   * The environment of each queue is listed in ENVIRONMENTS; scripts of older clients do not list it.
local function check_some_queues()
  local scanned = redis.call('SSCAN', QUEUES, redis.call('HGET', META, 'checked') or '0', 'COUNT', 10)
  local listed, members = {}, {}
  for _, name in ipairs(scanned[2]) do
    local E, Q = name:match('^(.*):([^:]*)$')
    if not listed[E] then
      listed[E], members[#members + 1] = true, E
    end
    local v = redis.call('HMGET', queue_key(E, Q), 'ready', 'levels', 'indexed', 'paused', 'limit', 'running')
    local found, levels = redis.call('ZCARD', ready_key(E, Q, 0)), redis.call('ZRANGE', levels_key(E, Q), 0, -1)
    for _, level in ipairs(levels) do found = found + redis.call('ZCARD', ready_key(E, Q, tonumber(level))) end
    if found ~= tonumber(v[1] or 0) or #levels ~= tonumber(v[2] or 0) then
      mark_for_repair(name)
    elseif not is_index_correct(E, Q, v) then
      rebuild_index(E, Q)
    end
  end
  call_in_chunks('SADD', ENVIRONMENTS, members)
  redis.call('HSET', META, 'checked', scanned[1])
end
