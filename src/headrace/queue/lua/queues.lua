-- Unit of work: the queues and environments that a script has loaded. A script loads each once and changes its counters
-- in Lua; `save_all` (save.lua) writes them back, updates the indexes and emits the events. A script that includes this
-- file and fails ends with failure.lua, which reads `progress`.
--@include keys, clock, shard, cold_field, quotas

local queues, touched_queues = {}, progress.queues
local envs, touched_envs = {}, {}

local function load_env(E)
  local env = envs[E]
  if not env then
    local v = redis.call('HMGET', env_key(E), 'depth', 'running', 'limit', 'burst', 'bytes', 'jobs', 'counted', 'quota',
      'share', 'cold_id_bytes')
    env = { E = E, exists = v[1] ~= false, depth = tonumber(v[1] or 0), running = tonumber(v[2] or 0),
      limit = tonumber(v[3] or nil), bytes = tonumber(v[5] or nil), jobs = tonumber(v[6] or nil),
      counted_at = tonumber(v[7] or nil), has_cold_ids = v[10] ~= false }
    if not env.exists then env.bytes, env.jobs = 0, 0 end -- else nil: made by an older release, see refresh_env_usage
    if env.limit then env.max_running = math.floor(env.limit * tonumber(v[4] or 1)) end
    local shard_state = load_shard()
    if v[8] or v[9] or shard_state.quota or shard_state.shared then
      env.quotas = read_quotas(E, v[8], v[9])
      local running = env.quotas.running
      if running and running < (env.max_running or math.huge) then
        env.limit, env.max_running = math.min(env.limit or running, running), running
      end
    end
    env.was_blocked = env.limit and env.running >= env.max_running or false
    envs[E] = env
    touched_envs[#touched_envs + 1] = env
  end
  return env
end

local function load_queue(E, Q)
  local name = E .. ':' .. Q
  local queue = queues[name]
  if not queue then
    -- `in_flight` lists the jobs that the script is adding or leasing, for failure.lua.
    local v = redis.call('HMGET', queue_key(E, Q), 'epoch', 'ready', 'warm_scheduled', 'running', 'warm_bytes',
      'limit', 'paused', 'closed', 'levels', 'org', 'project', 'env', 'queue', 'oldest', 'indexed', 'cold', 'caps',
      'known_detail', 'dead_bytes', 'result_bytes')
    queue = { E = E, Q = Q, name = name, epoch = v[1], ready = tonumber(v[2] or 0),
      warm_scheduled = tonumber(v[3] or 0), running = tonumber(v[4] or 0), warm_bytes = tonumber(v[5] or 0),
      limit = tonumber(v[6] or nil), paused = v[7] == '1', closed = v[8] == '1',
      levels = tonumber(v[9] or 0), org = v[10], project = v[11], env = v[12], queue = v[13],
      oldest = tonumber(v[14] or nil), indexed = v[15], cold = v[16] and unpack_cold(v[16]) or nil,
      caps = v[17], known_detail = v[18] ~= '' and v[18] or nil, dead_bytes = tonumber(v[19] or nil),
      result_bytes = tonumber(v[20] or 0),
      environment = load_env(E), ops = {}, added = {}, flow_changes = {}, in_flight = {} }
    queue.bytes_before = queue.warm_bytes
    queue.warm_before = queue.ready + queue.warm_scheduled + queue.running
    if not queue.epoch then queue.dead_bytes = 0 end -- else nil: made by an older release, see sum_dead_bytes
    queues[name] = queue
    touched_queues[#touched_queues + 1] = queue
  end
  return queue
end

-- Create a queue with its first job or setting. The names are as given, not encoded.
local function create_queue(queue, org, project, env, name)
  queue.epoch, queue.org, queue.project, queue.env, queue.queue = format_int(NOW), org, project, env, name
  redis.call('SADD', QUEUES, queue.name)
  redis.call('SADD', ENVIRONMENTS, queue.E)
  redis.call('SADD', env_names_key(queue.E), queue.Q)
  redis.call('HSET', queue_key(queue.E, queue.Q), 'epoch', queue.epoch, 'org', org, 'project', project, 'env', env,
    'queue', name, 'dead_bytes', 0)
end

-- Count one job, or `amount` jobs, for an operation. `wait` and `run` (ms) become part of its event.
local function count_op(queue, op, wait, run, amount)
  local op_count = queue.ops[#queue.ops]
  if not op_count or op_count.op ~= op then
    for _, other in ipairs(queue.ops) do
      if other.op == op then op_count = other end
    end
    if not op_count or op_count.op ~= op then
      op_count = { op = op, n = 0, waits = {}, runs = {} }
      queue.ops[#queue.ops + 1] = op_count
    end
  end
  op_count.n = op_count.n + (amount or 1)
  if wait then op_count.waits[#op_count.waits + 1] = format_int(math.max(wait, 0)) end
  if run then op_count.runs[#op_count.runs + 1] = run end
end
