-- Queues whose numbers or indexes are off are found again, some in each call of maintenance.
--@include keys, chunks, queues, recovery, fair_index

-- Whether the indexes hold a queue as they should: under its environment if it may run; if the environment has room too,
-- under its name, and the environment among those of the shard. `v` are fields as check_some_queues reads them.
local function is_index_correct(E, Q, v)
  local env, indexed = load_env(E), v[3] or ''
  local queue = { environment = env, limit = tonumber(v[5] or nil), running = tonumber(v[6] or 0) }
  if tonumber(v[1] or 0) == 0 or v[4] == '1' or not is_below_limits(queue) then return indexed == '' end
  if indexed == '' or not redis.call('ZSCORE', env_queues_key(E), Q) then return false end
  if is_env_blocked(env) then return true end -- dequeue parks its names, and takes it out, as it meets it
  return indexed:sub(1, 5) == 'free ' and redis.call('ZSCORE', class_key(Q), E) and redis.call('ZSCORE', ENVS, E)
    and redis.call('SISMEMBER', env_blocked_key(E), Q) == 0
end

-- Put a queue into the indexes if it may run, else take it out. Its hash is written last: a script that fails before that
-- is followed by one that does it again.
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

-- Look at some queues, others in each call. Must come after `save_all`.
--   * Those whose count of ready jobs is off are marked for repair: a script failed and could not say so.
--   * Those that the indexes lack, or hold without reason, are indexed again: the limits of their environment changed, and
--     scripts of older clients, which know no quotas, or a process that ended early did not see to it.
--   * Their environments are listed, which scripts of older clients do not do.
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
