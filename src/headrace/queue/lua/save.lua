-- Write back what a script has changed, and the order of writes that every script keeps.
--
-- Order of writes. Lua does not roll back: a script that fails has done the first part of its writes. So:
--   * The hash of a job is authoritative: its `state` names the place of the job (`ready`, `scheduled`, `leases` or
--     `dead`).
--   * A job is added to its new place, and its hash is written, before it is removed from the old place
--     (`remove_on_save`). For a new job: first its body, then its hash, then its place.
--   * For a job that ends: first its hash is deleted, then it is removed from its place.
--   * So every job is in a place at all times, perhaps in two. Only the place that its state names counts: code that
--     finds a job in another place calls `place_by_state`. The exception is a new job that has no place yet; its
--     producer got an error and repeats the call (`is_complete`).
--   * Counters and fair indexes may be wrong after a failure: failure.lua and `place_by_state` request that maintenance
--     repairs the queue (repair.lua).
--@include flows, ready, places, dead_bytes, cold_mode, fair_index, wake, events

-- Write the loaded queues and environments, update the indexes, and emit events. The last call of most scripts.
local function save_all(maxlen)
  for _, queue in ipairs(touched_queues) do save_ready(queue) end
  for key, members in pairs(to_remove) do call_in_chunks('ZREM', key, members) end
  for _, queue in ipairs(touched_queues) do
    reindex_queue(queue)
    local env = queue.environment
    if env.bytes then env.bytes = math.max(0, env.bytes + queue.warm_bytes - queue.bytes_before) end
    if env.jobs then env.jobs = math.max(0, env.jobs + count_warm(queue) - queue.warm_before) end
  end
  for _, env in ipairs(touched_envs) do
    reindex_env(env)
    if env.bytes and env.jobs then
      redis.call('HSET', env_key(env.E), 'depth', env.depth, 'running', env.running, 'bytes', env.bytes,
        'jobs', env.jobs)
    elseif env.bytes then
      redis.call('HSET', env_key(env.E), 'depth', env.depth, 'running', env.running, 'bytes', env.bytes)
    else
      redis.call('HSET', env_key(env.E), 'depth', env.depth, 'running', env.running)
    end
  end
  -- After the indexes: if the script fails while it writes these, `indexed` is unchanged and the next script repeats
  -- them.
  for _, queue in ipairs(touched_queues) do
    save_flows(queue)
    queue.bytes = format_int(queue.warm_bytes)
    redis.call('HSET', queue_key(queue.E, queue.Q), 'ready', queue.ready, 'warm_scheduled', queue.warm_scheduled,
      'running', queue.running, 'warm_bytes', queue.bytes, 'levels', queue.levels, 'oldest', queue.oldest_text,
      'indexed', queue.indexed or '', 'known_detail', queue.known_detail or '')
    save_dead_bytes(queue)
    if queue.cold_changed then redis.call('HSET', queue_key(queue.E, queue.Q), 'cold', pack_cold(queue.cold)) end
    request_refill(queue)
    if queue.warm_bytes ~= queue.bytes_before then
      local shard_state = load_shard()
      shard_state.bytes, shard_state.changed = shard_state.bytes + queue.warm_bytes - queue.bytes_before, true
    end
  end
  save_signals()
  emit_events(maxlen)
end
