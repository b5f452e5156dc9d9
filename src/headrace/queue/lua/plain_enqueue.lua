-- plain_enqueue: the common case of enqueue.lua, in less than half of its time. It runs in front of the other parts of
-- the script, whose functions Lua then does not create. It writes what the other parts would write
-- (test_plain_enqueue.py compares them) and returns their reply, or it writes nothing and the other parts run.
--
-- A call is plain if no job has a delay, a TTL or a priority, all are of the flow that the queue knows, no id exists or
-- is registered (cold_ids.lua), everything fits and no quota applies; and if the queue has ready jobs, may run, and has
-- nothing in PostgreSQL. Then its oldest job, its fair indexes and its flows do not change. The order of writes is that
-- of save.lua.
--@include keys, clock
local MAX_PLAIN_JOBS = 500

-- Return the reply, or nil if the call is not plain. A field is missing if only an older release wrote the hash.
local function enqueue_plain()
  local E, Q, far_ms, op = ARGV[3], ARGV[4], ARGV[12], 'enqueue'
  local count = (#ARGV - 15) / 7
  if ARGV[14] ~= '1' or far_ms == '0' or count < 1 or count > MAX_PLAIN_JOBS then return nil end
  local detail, bytes = ARGV[19]:match('^[^\t]*\t([^\n]*)'), 0
  for i = 16, #ARGV, 7 do
    if ARGV[i + 2] ~= '0' or ARGV[i + 4] ~= '0' or ARGV[i + 5] ~= '0'
      or (i > 16 and ARGV[i + 3]:match('^[^\t]*\t([^\n]*)') ~= detail) then return nil end
    bytes = bytes + ARGV[i + 1]
  end

  -- The queue has ready jobs, is open and may run, and nothing of it waits in PostgreSQL.
  local queue_hash, env_hash, total_field = queue_key(E, Q), env_key(E), 'o:' .. op
  local indexed, oldest, known_detail, paused, closed, ready, scheduled, running, warm_bytes, dead_bytes, limit, caps,
    cold, epoch, total, result_bytes = unpack(redis.call('HMGET', queue_hash, 'indexed', 'oldest', 'known_detail',
      'paused', 'closed', 'ready', 'warm_scheduled', 'running', 'warm_bytes', 'dead_bytes', 'limit', 'caps', 'cold',
      'epoch', total_field, 'result_bytes'))
  if not oldest or indexed ~= 'free ' .. oldest or known_detail ~= detail then return nil end
  if paused == '1' or closed == '1' or not (epoch and ready and scheduled and running and warm_bytes) then
    return nil
  end
  if limit and tonumber(running) >= tonumber(limit) then return nil end
  local cold_epoch = '1'
  if cold then -- cold mode, depth, scheduled and bytes are 0, and there is no oldest job (cold_field.lua)
    cold_epoch = cold:match('^0 (%d+) %d+ 0 0 0 %d+ %d+ %d+ %d+ %d+ %d+ %d+$')
    if not cold_epoch then return nil end
  end

  -- The environment is below its limit, and has no quotas.
  local env_depth, env_running, env_bytes, env_jobs, env_limit, burst, quota, share, cold_id_bytes = unpack(
    redis.call('HMGET', env_hash, 'depth', 'running', 'bytes', 'jobs', 'limit', 'burst', 'quota', 'share',
      'cold_id_bytes'))
  if quota or share or not (env_depth and env_running and env_bytes and env_jobs) then return nil end
  if env_limit and (tonumber(running) >= tonumber(env_limit)
    or tonumber(env_running) >= math.floor(env_limit * (burst or 1))) then return nil end

  -- All jobs fit beside records of attempts (capacity.lua, shard_capacity.lua), and dead jobs leave room if no PostgreSQL takes them.
  local seq, shard_bytes, bounds, postgres, default_quota, shared, shard_results = unpack(redis.call('HMGET', META,
    'seq', 'bytes', 'bounds', 'postgres', 'quota', 'shared', 'result_bytes'))
  if default_quota or shared or not (seq and shard_bytes) then return nil end
  local max_items, max_bytes, max_shard_bytes, maxlen = ARGV[9], ARGV[10], ARGV[11], ARGV[2]
  if bounds then
    local stored_items, stored_bytes, stored_shard_bytes, stored_maxlen = bounds:match('^(%S+) (%S+) (%S+) (%S+)$')
    if not stored_items then return nil end
    max_items, max_bytes = tonumber(stored_items) or max_items, tonumber(stored_bytes) or max_bytes
    max_shard_bytes, maxlen = tonumber(stored_shard_bytes) or max_shard_bytes, tonumber(stored_maxlen) or maxlen
  end
  if caps then
    local own_items, own_bytes = caps:match('^(%d+) (%d+)$')
    max_items, max_bytes = own_items or max_items, own_bytes or max_bytes
  end
  max_shard_bytes = tonumber(max_shard_bytes)
  if far_ms ~= '' then dead_bytes = 0 end
  if not dead_bytes or warm_bytes + dead_bytes + (result_bytes or 0) + bytes > tonumber(max_bytes)
    or ready + scheduled + running + count > tonumber(max_items)
    or (max_shard_bytes > 0 and shard_bytes + (shard_results or 0) + bytes > max_shard_bytes) then return nil end

  -- No id exists, and no id occurs twice. For one job, SET finds out.
  if count > 1 then
    local body_keys, seen_ids = {}, {}
    for i = 16, #ARGV, 7 do
      local J = ARGV[i]
      if seen_ids[J] then return nil end
      seen_ids[J], body_keys[#body_keys + 1] = true, body_key(E .. ':' .. J)
    end
    if redis.call('EXISTS', unpack(body_keys)) > 0 then return nil end
  end
  if cold_id_bytes then
    local ids = {}
    for i = 16, #ARGV, 7 do ids[#ids + 1] = ARGV[i] end
    for _, entry in ipairs(redis.call('HMGET', env_cold_ids_key(E), unpack(ids))) do
      if entry then return nil end
    end
  end
  if NOW < tonumber(oldest) then return nil end -- the clock was set back

  local enqueued, now_text, in_flight, members, answers = math.floor(NOW), format_float(NOW), {}, {}, {}
  for i = 16, #ARGV, 7 do
    local J, n = ARGV[i], #answers
    local EJ = E .. ':' .. J
    if not redis.call('SET', body_key(EJ), ARGV[i + 3], 'NX') then return nil end -- the only job of the call
    in_flight[n + 1] = J
    if n == 0 then progress.queues[1] = { name = E .. ':' .. Q, in_flight = in_flight } end
    local at = n == 0 and now_text or format_float(NOW + n / 4096)
    redis.call('HSET', job_key(EJ), 'Q', Q, 'size', ARGV[i + 1], 'state', 'ready', 'enqueued', enqueued, 'due', at,
      'priority', '0', 'attempts', '0', 'max_attempts', ARGV[i + 6], 'detail', detail)
    members[2 * n + 1], members[2 * n + 2], answers[n + 1] = at, J, 1
  end

  local event_number, odometer = format_int(seq + 1), format_int((total or 0) + count)
  local depth, env_count, new_bytes = ready + count, env_depth + count, format_int(warm_bytes + bytes)
  local counters = { 'seq', event_number, 'bytes', shard_bytes + bytes }
  redis.call('ZADD', ready_key(E, Q, 0), unpack(members))
  redis.call('HSET', env_hash, 'depth', env_count, 'bytes', env_bytes + bytes, 'jobs', env_jobs + count)
  redis.call('ZADD', detail_key(E, Q, detail), unpack(members))
  redis.call('HSET', queue_hash, 'ready', depth, 'warm_bytes', new_bytes, total_field, odometer)
  redis.call('HSET', META, unpack(counters))
  if redis.call('GET', METRICS_ENABLED) ~= '0' then
    redis.pcall('XADD', METRICS, 'MAXLEN', '~', maxlen, '*', 'e', pack_columns(event_number, ARGV[5], ARGV[6], ARGV[7],
      ARGV[8], op, count, odometer, epoch, depth, scheduled, running, limit, env_count, env_running, env_limit,
      math.floor(oldest), new_bytes, 0, 0))
  end
  return { epoch, tonumber(cold_epoch), now_text, answers, postgres or '' }
end

local reply = enqueue_plain()
if reply then return reply end
