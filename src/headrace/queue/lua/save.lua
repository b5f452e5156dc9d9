-- Write back what a script has changed.
--
-- Order of writes. Lua does not roll back. A script that fails has written some first part of what it would have written, so
-- writes are ordered. The hash of a job is the record of where it stands, and:
--   * A job is added to the place that its state names, and its hash is written, before it leaves the old place
--     (`remove_on_save`). A new job has its body, then its hash, then its place.
--   * A job that ends loses its hash first, then its place.
--   * So every job is in `ready`, `scheduled`, `leases` or `dead` at all times, possibly in two of them, and only a place
--     that its state names counts: code that finds a job elsewhere calls `place_by_state`. The exception is a new job that has
--     no place yet: the producer was told that the call failed, and repeats it (`is_complete`).
--   * Numbers and fair indexes may be off after that: failure.lua and `place_by_state` ask maintenance to count the queue again
--     (repair.lua).
--@include flows, ready, places, dead_bytes, cold_mode, fair_index, events

-- Write back what the script changed, and emit its events.
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
  -- After the indexes: should a script fail among them, `indexed` is as it was, and the next one writes them again.
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
  emit_events(maxlen)
end
