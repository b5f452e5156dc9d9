-- The state of queues and environments, as a unit of work: a script loads what it touches once, changes
-- the numbers here, and `save_all` writes them back, keeps the indexes true and emits the events.
-- Needs keys.lua, the generated VERBS and pack_event, and `progress` of failure.lua.
--
-- Lua does not roll back. A script that fails has written some first part of what it would have written, so writes are
-- ordered. The hash of a job is the record of where it stands, and:
--   * A job is added to the place that its state names, and its hash is written, before it leaves the old place
--     (`leave`). A new job has its body, then its hash, then its place.
--   * A job that ends loses its hash first, then its place.
--   * So every job is in `ready`, `scheduled`, `leases` or `dead` at all times, possibly in two of them, and only a place
--     that its state names counts: code that finds a job elsewhere calls `misplaced`. The exception is a new job that has
--     no place yet: the producer was told that the call failed, and repeats it (`is_complete`).
--   * Numbers and fair indexes may be off after that: failure.lua and `misplaced` ask maintenance to count the queue again
--     (repair.lua).
local clock = redis.call('TIME')
-- In milliseconds, with the microseconds behind the point: jobs that arrive within one millisecond keep their order.
local NOW = tonumber(clock[1]) * 1000 + tonumber(clock[2]) / 1000

-- Lua prints numbers with 14 digits, too few for these. An argument of a command needs this only if it may have a fraction:
-- the server itself prints whole numbers in full.
local function whole(number) return string.format('%d', math.floor(number)) end
local function precise(number) return string.format('%.6f', number) end

-- Arguments for one command instead of many; the server takes some thousands at a time.
local function in_chunks(command, key, members)
  for i = 1, #members, 1000 do
    redis.call(command, key, unpack(members, i, math.min(i + 999, #members)))
  end
end

-- The shard's own numbers, read at most once and written back at most once.
local shard

local function shard_numbers()
  if not shard then
    local v = redis.call('HMGET', META, 'seq', 'bytes', 'delivery', 'turn', 'bounds', 'postgres', 'quota', 'shared')
    shard = { seq = tonumber(v[1] or 0), bytes = tonumber(v[2] or 0), delivery = tonumber(v[3] or 0),
      turn = tonumber(v[4] or 0), bounds = v[5], postgres = v[6] or '', quota = v[7], shared = v[8] }
  end
  return shard
end

-- A stored bound, which holds for every client; nil: none is stored, and the client's own option holds. They are stored as
-- words in one field: most jobs (1) and bytes (2) of a queue, most bytes of the shard (3), events of the metric stream (4).
local function stored_bound(number)
  local bounds = shard_numbers().bounds
  return bounds and tonumber(bounds:match(('%S+ '):rep(number - 1) .. '(%S+)') or nil) or nil
end

-- Whether jobs of this shard wait in another PostgreSQL than the one with this id.
local function is_wrong_database(id)
  local known = shard_numbers().postgres
  return known ~= '' and id ~= '' and known ~= id
end
local WRONG_DATABASE = 'WRONGDB jobs of this shard wait in another PostgreSQL'

local queues, touched_queues = {}, progress.queues
local envs, touched_envs = {}, {}

-- What PostgreSQL holds of a queue, as it last told us, in one field: most queues have none. `on` is cold mode:
-- new jobs wait in PostgreSQL, behind those that wait there. Counts under a `version` that only grows; the totals of
-- verbs that happen there are kept to tell how much they grew.
local COLD_FIELDS = { 'on', 'epoch', 'version', 'depth', 'scheduled', 'bytes', 'dead', 'spill', 'expire', 'cancel',
  'redrive', 'max_items', 'max_bytes', 'oldest' }

local function unpack_cold(text)
  local cold, i = {}, 1
  for value in text:gmatch('[^ ]+') do
    cold[COLD_FIELDS[i]] = tonumber(value)
    i = i + 1
  end
  return cold -- `oldest` is last, and missing while nothing waits there
end

local function pack_cold(cold)
  local values = {}
  for i = 1, #COLD_FIELDS - 1 do values[i] = whole(cold[COLD_FIELDS[i]]) end
  if cold.oldest then values[#values + 1] = precise(cold.oldest) end
  return table.concat(values, ' ')
end

local function new_cold()
  return { on = 0, epoch = 1, version = 0, depth = 0, scheduled = 0, bytes = 0, dead = 0, spill = 0, expire = 0,
    cancel = 0, redrive = 0, max_items = 0, max_bytes = 0 }
end

-- The quotas of operators, as words in one field (queue/quotas.py): `quota` of an environment ('=': the default, '-': none),
-- `quota` of META (the defaults), `share` of an environment (its share of quotas of its project and organisation).
local QUOTAS = { 'warm_jobs', 'warm_bytes', 'queues', 'enqueue_rate', 'enqueue_burst', 'running' }

-- The quotas in force for an environment, by name; nil where there is none. A quota of its project or organisation that it
-- has no share of yet is 0. Shares come each second (cold/shares.py).
local function read_quotas(E, own, share)
  local numbers = shard_numbers()
  local found, is_share, own_rate, default = {}, {}, nil, (numbers.quota or ''):gmatch('%S+')
  own = (own or ''):gmatch('%S+')
  local shares = (share or ''):gmatch('%S+')
  for _, name in ipairs(QUOTAS) do
    local usual, word, part = default(), own(), tonumber(shares() or nil)
    found[name] = tonumber((not word or word == '=') and usual or word or nil)
    if name == 'enqueue_burst' and part and not found[name] and own_rate then found[name] = math.max(1, own_rate) end
    if name == 'enqueue_rate' then own_rate = found[name] end
    if part and (not found[name] or part < found[name]) then found[name], is_share[name] = part, true end
  end
  if numbers.shared and not share then
    local org, project = E:match('^([^:]*):([^:]*)')
    for _, names in ipairs(redis.call('HMGET', META, 'shared:' .. org, 'shared:' .. org .. ':' .. project)) do
      for name in (names or ''):gmatch('%S+') do found[name], is_share[name] = 0, true end
    end
  end
  found.is_share = is_share
  return found
end

local function env_of(E)
  local env = envs[E]
  if not env then
    local v = redis.call('HMGET', env_key(E), 'depth', 'running', 'limit', 'burst', 'bytes', 'jobs', 'counted', 'quota',
      'share')
    env = { E = E, exists = v[1] ~= false, depth = tonumber(v[1] or 0), running = tonumber(v[2] or 0),
      limit = tonumber(v[3] or nil), bytes = tonumber(v[5] or nil), jobs = tonumber(v[6] or nil),
      counted_at = tonumber(v[7] or nil) }
    if not env.exists then env.bytes, env.jobs = 0, 0 end -- else nil: older scripts made it, see count_environment
    if env.limit then env.most_running = math.floor(env.limit * tonumber(v[4] or 1)) end
    local numbers = shard_numbers()
    if v[8] or v[9] or numbers.quota or numbers.shared then
      env.quotas = read_quotas(E, v[8], v[9])
      local running = env.quotas.running
      if running and running < (env.most_running or math.huge) then
        env.limit, env.most_running = math.min(env.limit or running, running), running
      end
    end
    env.was_blocked = env.limit and env.running >= env.most_running or false
    envs[E] = env
    touched_envs[#touched_envs + 1] = env
  end
  return env
end

local function queue_of(E, Q)
  local name = E .. ':' .. Q
  local queue = queues[name]
  if not queue then
    -- Named as the columns of an event, so that the queue itself can be packed into one.
    local v = redis.call('HMGET', queue_key(E, Q), 'epoch', 'ready', 'warm_scheduled', 'running', 'warm_bytes',
      'limit', 'paused', 'closed', 'levels', 'org', 'project', 'env', 'queue', 'oldest', 'indexed', 'cold', 'caps',
      'known_detail', 'dead_bytes')
    queue = { E = E, Q = Q, name = name, epoch = v[1], ready = tonumber(v[2] or 0),
      warm_scheduled = tonumber(v[3] or 0), running = tonumber(v[4] or 0), warm_bytes = tonumber(v[5] or 0),
      limit = tonumber(v[6] or nil), paused = v[7] == '1', closed = v[8] == '1',
      levels = tonumber(v[9] or 0), org = v[10], project = v[11], env = v[12], queue = v[13],
      oldest = tonumber(v[14] or nil), indexed = v[15], cold = v[16] and unpack_cold(v[16]) or nil,
      caps = v[17], known_detail = v[18] ~= '' and v[18] or nil, dead_bytes = tonumber(v[19] or nil), environment = env_of(E), ops = {},
      added = {}, details = {}, fresh = {} }
    queue.bytes_before = queue.warm_bytes
    queue.held_before = queue.ready + queue.warm_scheduled + queue.running
    if not queue.epoch then queue.dead_bytes = 0 end -- else nil: older scripts made it, see sum_dead
    queues[name] = queue
    touched_queues[#touched_queues + 1] = queue
  end
  return queue
end

-- A queue comes into being with its first job. Names are as they were given, not encoded.
local function create(queue, org, project, env, name)
  queue.epoch, queue.org, queue.project, queue.env, queue.queue = whole(NOW), org, project, env, name
  redis.call('SADD', QUEUES, queue.name)
  redis.call('SADD', ENVIRONMENTS, queue.E)
  redis.call('SADD', env_names_key(queue.E), queue.Q)
  redis.call('HSET', queue_key(queue.E, queue.Q), 'epoch', queue.epoch, 'org', org, 'project', project, 'env', env,
    'queue', name, 'dead_bytes', 0)
end

-- Count one job for a verb, or `many`. Waits and run times travel with the event of the verb.
local function count(queue, op, wait, run, many)
  local tally = queue.ops[#queue.ops]
  if not tally or tally.op ~= op then
    for _, known in ipairs(queue.ops) do
      if known.op == op then tally = known end
    end
    if not tally or tally.op ~= op then
      tally = { op = op, n = 0, waits = {}, runs = {} }
      queue.ops[#queue.ops + 1] = tally
    end
  end
  tally.n = tally.n + (many or 1)
  if wait then tally.waits[#tally.waits + 1] = whole(math.max(wait, 0)) end
  if run then tally.runs[#tally.runs + 1] = run end
end

-- Where jobs wait -------------------------------------------------------------------------------

-- Which jobs wait, by (task, flow, flow type): a sorted set each, so that counts and the oldest need no search. The
-- changes of one call are written together.
local function detail_of(queue, detail)
  local changes = queue.details[detail or '']
  if not changes then
    changes = { added = {}, removed = {} }
    queue.details[detail or ''] = changes
  end
  return changes
end

local function leave_detail(queue, J, detail)
  local removed = detail_of(queue, detail).removed
  removed[#removed + 1] = J
end

local function save_details(queue)
  for detail, changes in pairs(queue.details) do
    local key = detail_key(queue.E, queue.Q, detail)
    if #changes.added > 0 then
      in_chunks('ZADD', key, changes.added)
      if detail ~= queue.known_detail then -- most queues have one, and it is listed since long
        redis.call('SADD', details_key(queue.E, queue.Q), detail)
        queue.known_detail = detail
      end
    end
    if #changes.removed > 0 then
      in_chunks('ZREM', key, changes.removed)
      if redis.call('EXISTS', key) == 0 then
        redis.call('SREM', details_key(queue.E, queue.Q), detail)
        if detail == queue.known_detail then queue.known_detail = nil end
      end
    end
  end
end

local function add_scored(members, score, J)
  local n = #members
  members[n + 1], members[n + 2] = score, J
end

-- Jobs of priority 0 wait in one sorted set by eligible time. Other priorities have a set each,
-- listed in `levels`, which does not exist for the many queues that use none. Those of one call are written together.
local function add_ready(queue, J, at, priority, detail)
  local score = precise(at)
  local added = queue.added[priority]
  if not added then
    added = {}
    queue.added[priority] = added
  end
  add_scored(added, score, J)
  add_scored(detail_of(queue, detail).added, score, J)
  queue.ready = queue.ready + 1
  queue.environment.depth = queue.environment.depth + 1
  if not queue.oldest or at < queue.oldest then queue.oldest = at end
end

local function save_ready(queue)
  for priority, members in pairs(queue.added) do
    if priority ~= 0 and redis.call('ZADD', levels_key(queue.E, queue.Q), -priority, priority) == 1 then
      queue.levels = queue.levels + 1
    end
    in_chunks('ZADD', ready_key(queue.E, queue.Q, priority), members)
  end
end

local function drop_empty_level(queue, priority)
  if priority ~= 0 and redis.call('EXISTS', ready_key(queue.E, queue.Q, priority)) == 0 then
    redis.call('ZREM', levels_key(queue.E, queue.Q), priority)
    queue.levels = queue.levels - 1
  end
end

local function remove_ready(queue, J, priority, detail)
  redis.call('ZREM', ready_key(queue.E, queue.Q, priority), J)
  drop_empty_level(queue, priority)
  leave_detail(queue, J, detail)
  queue.ready = queue.ready - 1
  queue.environment.depth = queue.environment.depth - 1
  queue.oldest_left = true
end

-- The priorities that have jobs, most urgent first. (An empty queue answers 0.)
local function levels_of(queue)
  if queue.levels == 0 then return { 0 } end
  local found = {}
  local zero = redis.call('EXISTS', ready_key(queue.E, queue.Q, 0)) == 1
  for _, text in ipairs(redis.call('ZRANGE', levels_key(queue.E, queue.Q), 0, -1)) do
    local priority = tonumber(text)
    if zero and priority < 0 then
      found[#found + 1], zero = 0, false
    end
    found[#found + 1] = priority
  end
  if zero then found[#found + 1] = 0 end
  return found
end

-- When the longest-waiting job became eligible; nil if nothing waits.
local function oldest_of(queue)
  local oldest
  for _, priority in ipairs(levels_of(queue)) do
    local at = redis.call('ZRANGE', ready_key(queue.E, queue.Q, priority), 0, 0, 'WITHSCORES')[2]
    if at and (not oldest or tonumber(at) < oldest) then oldest = tonumber(at) end
  end
  return oldest
end

local function add_scheduled(queue, J, due)
  redis.call('ZADD', SCHEDULED, precise(due), queue.E .. ':' .. J)
  queue.warm_scheduled = queue.warm_scheduled + 1
end

-- Jobs that leave a place, by its key. `save_all` removes them after it has added them to the new one.
local left = {}

local function leave(key, member)
  left[key] = left[key] or {}
  left[key][#left[key] + 1] = member
end

local function remove_scheduled(queue, J)
  leave(SCHEDULED, queue.E .. ':' .. J)
  queue.warm_scheduled = queue.warm_scheduled - 1
end

-- Ask maintenance to count a queue again.
local function mark_for_repair(name) redis.call('HSETNX', REPAIR, name, '') end

-- A job stands in a place that its state does not name, because a script failed between two writes. Add it to the place
-- that its state names, if it is not there; nil: there is no such job. The caller removes it from where it was found.
local function misplaced(E, J, state)
  local EJ = E .. ':' .. J
  local v = redis.call('HMGET', job_key(EJ), 'Q', 'priority', 'due', 'expires')
  if not v[1] then return end
  if v[4] and (state == 'ready' or state == 'scheduled') then redis.call('ZADD', EXPIRIES, 'NX', v[4], EJ) end
  if state == 'ready' then
    local priority = tonumber(v[2])
    if priority ~= 0 then redis.call('ZADD', levels_key(E, v[1]), -priority, priority) end
    redis.call('ZADD', ready_key(E, v[1], priority), 'NX', v[3], J)
  elseif state == 'scheduled' then
    redis.call('ZADD', SCHEDULED, 'NX', v[3], EJ)
  elseif state == 'running' then
    redis.call('ZADD', LEASES, 'NX', whole(NOW), EJ)
  elseif state == 'dead' then
    redis.call('ZADD', dead_key(E, v[1]), 'NX', whole(NOW), J)
    redis.call('SADD', BURIED, E .. ':' .. v[1])
  end
  mark_for_repair(E .. ':' .. v[1])
end

-- Whether a job whose body exists is known: it has a place, or it has ended and its id is kept. Else a script that was
-- adding it has failed.
local function is_complete(EJ)
  local E, J = EJ:match('^(.*):([^:]*)$')
  local v = redis.call('HMGET', job_key(EJ), 'state', 'Q', 'priority')
  if v[1] == 'ready' then
    return redis.call('ZSCORE', ready_key(E, v[2], tonumber(v[3])), J) and true
  elseif v[1] == 'scheduled' then
    return redis.call('ZSCORE', SCHEDULED, EJ) and true
  elseif v[1] then
    return true
  end
  -- By its length: producers may have no right to read bodies. A body with a job is longer than both.
  local length = redis.call('STRLEN', body_key(EJ))
  return length == 0 or length == #DEAD_ELSEWHERE
end

-- A job waits (again): until it is due, or for its turn. Its TTL, if it has one, counts while it waits.
local function make_wait(queue, J, at, priority, expires, detail)
  local EJ = queue.E .. ':' .. J
  if at > NOW then
    add_scheduled(queue, J, at)
    redis.call('HSET', job_key(EJ), 'state', 'scheduled', 'due', precise(at))
  else
    add_ready(queue, J, at, priority, detail)
    redis.call('HSET', job_key(EJ), 'state', 'ready', 'due', precise(at))
  end
  if expires then redis.call('ZADD', EXPIRIES, expires, EJ) end
end

-- How much fits ---------------------------------------------------------------------------------

-- Every job that takes memory counts, whether it waits, is scheduled or runs: a mass nack passes no cap.
local function held_by(queue) return queue.ready + queue.warm_scheduled + queue.running end

-- The caps of a queue: its own ("jobs bytes"), else the stored ones, else those of the client.
local function caps_of(queue, items, bytes)
  local own_items, own_bytes = (queue.caps or ''):match('^(%d+) (%d+)$')
  return tonumber(own_items or stored_bound(1) or items), tonumber(own_bytes or stored_bound(2) or bytes)
end

-- The byte cap of the shard: the stored one, else that of the client. 0: no cap.
local function shard_cap(bytes) return stored_bound(3) or tonumber(bytes) end

-- Whether one more job fits. An empty warm tier takes any job, or one that is larger than the cap could never run.
local function fits(queue, size, max_items, max_bytes)
  local held = held_by(queue)
  return held == 0 or (held < max_items and queue.warm_bytes + size <= max_bytes)
end

-- What all queues of the shard hold, as this script has changed it so far. (It has changed no other queue.)
local function shard_used(queue)
  return shard_numbers().bytes + queue.warm_bytes - queue.bytes_before
end

-- Dead jobs that Valkey keeps take memory as well: their payload, and about this much for the rest of each.
local DEAD_OVERHEAD = 512
local DEAD_SAMPLE = 1000

-- Sum up the bytes of a queue's dead jobs, for jobs that were buried or removed by scripts that do not count them. Of
-- more than a sample the sum is estimated.
local function sum_dead(queue)
  local key = dead_key(queue.E, queue.Q)
  local sample = redis.call('ZRANGE', key, 0, DEAD_SAMPLE - 1)
  local bytes = 0
  for _, J in ipairs(sample) do
    bytes = bytes + DEAD_OVERHEAD + tonumber(redis.call('HGET', job_key(queue.E .. ':' .. J), 'size') or 0)
  end
  if #sample == DEAD_SAMPLE then bytes = math.floor(bytes * redis.call('ZCARD', key) / DEAD_SAMPLE) end
  if bytes ~= queue.dead_bytes then queue.dead_bytes, queue.dead_changed = bytes, true end
  return bytes
end

-- The bytes of a queue's dead jobs in Valkey.
local function dead_bytes_of(queue) return queue.dead_bytes or sum_dead(queue) end

-- Count a dead job that came (1) or left (-1).
local function count_dead(queue, size, sign)
  queue.dead_bytes = math.max(0, dead_bytes_of(queue) + sign * (size + DEAD_OVERHEAD))
  queue.dead_changed = true
end

local function save_dead(queue)
  if queue.dead_changed then redis.call('HSET', queue_key(queue.E, queue.Q), 'dead_bytes', whole(queue.dead_bytes)) end
end

-- Whether the dead jobs of a queue leave room for a number of bytes. Only checked where no PostgreSQL takes them away.
local function dead_leave_room(queue, size, max_bytes)
  if dead_bytes_of(queue) == 0 or queue.warm_bytes + queue.dead_bytes + size <= max_bytes then return true end
  local dead = sum_dead(queue)
  return dead == 0 or queue.warm_bytes + dead + size <= max_bytes
end

local REFILL_BELOW, LEAVE_AT = 0.9, 0.8

-- Beyond its cap the shard has a reserve, a quarter of the cap, of which every environment has an equal share: one whose
-- jobs wait unserved and fill the cap does not keep the others from running.
local RESERVE = 0.25
local RECOUNT_MS = 5000

-- Let `bytes` and `jobs` of an environment be what its queues held before this script. Scripts of older clients change queues
-- without changing these sums, so they are taken anew from the queues every few seconds.
local function count_environment(env)
  if env.counted then return end
  env.counted = true
  local at = env.counted_at
  if not env.exists or (env.bytes and env.jobs and at and at <= NOW and NOW - at < RECOUNT_MS) then return end
  env.bytes, env.jobs = 0, 0
  for _, Q in ipairs(redis.call('SMEMBERS', env_names_key(env.E))) do
    local loaded = queues[env.E .. ':' .. Q]
    if loaded then
      env.bytes, env.jobs = env.bytes + math.max(0, loaded.bytes_before), env.jobs + loaded.held_before
    else
      local v = redis.call('HMGET', queue_key(env.E, Q), 'warm_bytes', 'ready', 'warm_scheduled', 'running')
      env.bytes = env.bytes + math.max(0, tonumber(v[1] or 0))
      env.jobs = env.jobs + tonumber(v[2] or 0) + tonumber(v[3] or 0) + tonumber(v[4] or 0)
    end
  end
  -- May fail without harm where the server is out of memory: then the next script counts again.
  redis.pcall('HSET', env_key(env.E), 'bytes', whole(env.bytes), 'jobs', whole(env.jobs), 'counted', whole(NOW))
end

-- Jobs and bytes of an environment in Valkey, as this script has changed them so far. (It has changed no other queue.)
local function held_by_environment(queue)
  local env = queue.environment
  count_environment(env)
  return env.jobs + held_by(queue) - queue.held_before, env.bytes + queue.warm_bytes - queue.bytes_before
end

-- The quota of the environment that so many more jobs and bytes in Valkey would exceed: its name, and what is used of it; nil:
-- none.
local function exceeded_quota(queue, jobs, bytes)
  local quotas = queue.environment.quotas
  if not quotas or not (quotas.warm_jobs or quotas.warm_bytes) then return nil end
  local held_jobs, held_bytes = held_by_environment(queue)
  if quotas.warm_jobs and held_jobs + jobs > quotas.warm_jobs then return 'warm_jobs', held_jobs end
  if quotas.warm_bytes and held_bytes + bytes > quotas.warm_bytes then return 'warm_bytes', held_bytes end
  return nil
end

-- Let the next round know that the environment's share of a quota is too small, and for a job of how many bytes, if that is why
-- it waits. May fail without harm where the server is out of memory: it is asked again.
local MOST_ASKING = 1000
local function ask_for_share(queue, name, bytes)
  if not queue.environment.quotas.is_share[name] or redis.call('SCARD', ASKING) >= MOST_ASKING then return end
  redis.pcall('SADD', ASKING, queue.E)
  if bytes then redis.pcall('HSET', env_key(queue.E), 'share_need', whole(bytes) .. ' ' .. whole(NOW)) end
end

-- How full the quotas of the environment are: 1 is full.
local function quota_fullness(quotas, jobs, bytes)
  local full = 0
  if quotas.warm_jobs then full = jobs / math.max(quotas.warm_jobs, 0.5) end
  if quotas.warm_bytes then full = math.max(full, bytes / math.max(quotas.warm_bytes, 0.5)) end
  if quotas.warm_jobs == 0 or quotas.warm_bytes == 0 then full = math.max(full, 1) end
  return full
end

-- What the environment of a queue holds and may hold of a full shard, and what the reserve has left for all of them. Only
-- needed while the shard is full: it may cost some calls, and its functions are in it so that Lua does not create them in
-- every run of the script.
local function share_of(queue, shard_max)
  -- How many environments the shard has, that of this queue included.
  local function count_environments(queue)
    if redis.call('HEXISTS', META, 'listed') == 0 then -- queues of older scripts are in no list of environments
      local found, members = {}, {}
      for _, name in ipairs(redis.call('SMEMBERS', QUEUES)) do
        local E = name:match('^(.*):[^:]*$')
        if not found[E] then
          found[E], members[#members + 1] = true, E
        end
      end
      in_chunks('SADD', ENVIRONMENTS, members)
      redis.call('HSET', META, 'listed', '1')
    end
    local missing = 1 - redis.call('SISMEMBER', ENVIRONMENTS, queue.E)
    local sharers = redis.call('SCARD', ENVIRONMENTS) + missing
    if missing == 1 and queue.epoch then redis.pcall('SADD', ENVIRONMENTS, queue.E) end -- made by an older script
    return sharers
  end

  local env = queue.environment
  local reserve = math.floor(shard_max * RESERVE)
  env.share = env.share or math.floor(reserve / count_environments(queue))
  local _, held = held_by_environment(queue)
  return held, env.share, shard_max + reserve - shard_used(queue), reserve
end

-- Bytes that the shard still takes from this queue: what its cap leaves, or what the share of the environment leaves.
local function shard_room(queue, shard_max)
  local free = shard_max - shard_used(queue)
  local held, share, reserve_left = share_of(queue, shard_max)
  return math.max(0, free, math.min(share - held, reserve_left))
end

-- Whether a number of bytes more fits into the shard; 0: no cap.
local function shard_takes(queue, size, shard_max)
  return shard_max == 0 or shard_used(queue) + size <= shard_max or size <= shard_room(queue, shard_max)
end

-- Whether one more job fits into the shard. An empty queue always takes one.
local function shard_fits(queue, size, shard_max)
  return held_by(queue) == 0 or shard_takes(queue, size, shard_max)
end

-- How full the shard is for this queue: 1 is full. Once the cap is reached, its environment's share counts.
local function shard_fullness(queue, shard_max)
  local full = shard_used(queue) / shard_max
  if full < REFILL_BELOW then return full end
  local held, share, reserve_left, reserve = share_of(queue, shard_max)
  if share <= 0 then return full end
  return math.min(full, math.max(held / share, 1 - reserve_left / reserve))
end

-- How full the warm tier is: 1 is full. Of items or bytes, whichever is worse.
local function fullness(queue, max_items, max_bytes)
  return math.max(held_by(queue) / max_items, queue.warm_bytes / max_bytes)
end

-- New jobs wait in PostgreSQL from now on, until what waits there is gone.
local function go_cold(queue, max_items, max_bytes)
  queue.cold = queue.cold or new_cold()
  queue.cold.on, queue.cold.max_items, queue.cold.max_bytes = 1, max_items, max_bytes
  queue.cold_changed = true
  redis.call('SADD', COLD, queue.name)
end

-- Whoever moves jobs between the tiers waits for this: there is room again and something to fill it, or nothing is
-- left in PostgreSQL and the queue may leave cold mode.
local function call_for_refill(queue)
  local cold = queue.cold
  if not cold or cold.on == 0 or queue.skip_refill_request then return end
  local full = fullness(queue, cold.max_items, cold.max_bytes)
  local env = queue.environment
  if env.quotas and env.jobs and env.bytes then
    full = math.max(full, quota_fullness(env.quotas, env.jobs, env.bytes))
  end
  if (full < REFILL_BELOW and cold.depth > 0) or (full <= LEAVE_AT and cold.depth == 0) then
    redis.call('ZADD', HUNGRY, 'NX', whole(NOW), queue.name)
  end
end

-- Who may run -----------------------------------------------------------------------------------

-- An environment may run its limit times its burst factor in all; none of its queues more than the
-- limit itself, so that one queue cannot take the burst for itself.
local function room_of(queue)
  local env = queue.environment
  local room = math.huge
  if queue.limit then room = queue.limit - queue.running end
  if env.limit then
    room = math.min(room, env.limit - queue.running, env.most_running - env.running)
  end
  return room
end

local function env_blocked(env)
  return env.limit ~= nil and env.running >= env.most_running
end

-- Self-clocked fair queueing. An index of environments holds the turns that each has taken; its clock is the score of
-- the member that was last served as the first of the index. META keeps the clock of ENVS (`turn`, see `shard_numbers`)
-- and of each queue name that is served by name (`turn:Q`, removed when the index of that name becomes empty).
local class_clocks = {} -- those that this script has moved

local function class_clock(Q)
  return class_clocks[Q] or tonumber(redis.call('HGET', META, 'turn:' .. Q) or 0)
end

-- Put an environment into an index, one turn behind the last served member and never before the least served one: it
-- has saved no turns while it was idle, and waits for one turn of each of the others at most.
local function join(index, E, clock)
  local least = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
  redis.call('ZADD', index, 'NX', whole(math.max(clock + 1, tonumber(least or 0))), E)
end

local function join_envs(E)
  if not redis.call('ZSCORE', ENVS, E) then join(ENVS, E, shard_numbers().turn) end
end

local function join_class(Q, E)
  if not redis.call('ZSCORE', class_key(Q), E) then join(class_key(Q), E, class_clock(Q)) end
end

local function leave_class(Q, E)
  if redis.call('ZREM', class_key(Q), E) == 1 and redis.call('EXISTS', class_key(Q)) == 0 then
    redis.call('HDEL', META, 'turn:' .. Q)
    class_clocks[Q] = nil
  end
end

-- Whether neither the queue's own limit nor that of its environment keeps it from running one more job.
local function has_own_room(queue)
  local env_limit = queue.environment.limit
  return (not queue.limit or queue.running < queue.limit) and (not env_limit or queue.running < env_limit)
end

-- The indexes hold what may run now and nothing else, so taking a job never has to search past what is
-- paused or at its limit: the environment's queues by age, the shard's environments by turns taken, and the
-- same per queue name for workers that serve some queues only. `indexed` remembers under which age the queue
-- stands there and whether its name is parked; while that stays the same, as when a job joins a backlog, nothing is
-- to do.
local function reindex_queue(queue)
  if queue.oldest_left then queue.oldest, queue.oldest_left = oldest_of(queue), nil end
  local env = queue.environment
  local wanted = ''
  queue.oldest_text = queue.oldest and precise(queue.oldest) or ''
  if queue.oldest and not queue.paused and has_own_room(queue) then
    wanted = (env_blocked(env) and 'parked ' or 'free ') .. queue.oldest_text
  end
  local before = queue.indexed or ''
  if wanted == before and queue.indexed then return end
  if wanted == '' or before == '' then env.queues_changed = true end
  queue.indexed = wanted
  if wanted == '' then
    redis.call('ZREM', env_queues_key(queue.E), queue.Q)
    leave_class(queue.Q, queue.E)
    redis.call('SREM', env_parked_key(queue.E), queue.Q)
    return
  end
  redis.call('ZADD', env_queues_key(queue.E), queue.oldest_text, queue.Q)
  if env_blocked(env) then
    leave_class(queue.Q, queue.E)
    redis.call('SADD', env_parked_key(queue.E), queue.Q)
  elseif before:sub(1, 5) ~= 'free ' then -- else it is there
    join_class(queue.Q, queue.E)
  end
end

-- A full environment leaves the index; the queue names under which a worker met it while full are
-- parked, and come back with it. Each is parked at most once per blocking, so this is paid for.
local function reindex_env(env)
  local blocked = env_blocked(env)
  -- Its place changes only with what is indexed under it, or when it becomes full or has room again.
  if env.clean or not (env.queues_changed or env.was_blocked or blocked) then return end
  env.clean = true
  if not blocked and redis.call('EXISTS', env_queues_key(env.E)) == 1 then
    join_envs(env.E)
  else
    redis.call('ZREM', ENVS, env.E)
  end
  if env.was_blocked and not blocked then
    for _, Q in ipairs(redis.call('SMEMBERS', env_parked_key(env.E))) do
      local age = redis.call('ZSCORE', env_queues_key(env.E), Q)
      if age then
        join_class(Q, env.E)
        redis.call('HSET', queue_key(env.E, Q), 'indexed', 'free ' .. precise(tonumber(age)))
      end
    end
    redis.call('DEL', env_parked_key(env.E))
  end
end

-- Events ----------------------------------------------------------------------------------------

-- What a queue has counted of every verb; 0 if never.
local function odometers_of(queue)
  local fields = {}
  for i, verb in ipairs(VERBS) do fields[i] = 'o:' .. verb end
  local totals = redis.call('HMGET', queue_key(queue.E, queue.Q), unpack(fields))
  for i, total in ipairs(totals) do totals[i] = total or '0' end
  return table.concat(totals, ',')
end

-- Odometers and the shard's event number always advance, so a switched-off or failing stream shows as missing
-- events later. Only the XADD may fail, and its error is dropped: an operation that happened must
-- not be reported as failed because nobody could write about it.
local function emit(queue, tally, seq, maxlen, enabled)
  local odometer
  if tally.n > 0 then
    odometer = whole(redis.call('HINCRBY', queue_key(queue.E, queue.Q), 'o:' .. tally.op, tally.n))
  end
  if not enabled then return end
  local env = queue.environment
  queue.seq, queue.op, queue.n, queue.odometer = whole(seq), tally.op, tally.n, odometer
  queue.env_depth, queue.env_running, queue.env_limit = env.depth, env.running, env.limit
  local cold, oldest = queue.cold, queue.oldest
  if cold and cold.oldest and not (oldest and oldest < cold.oldest) then oldest = cold.oldest end
  queue.depth, queue.scheduled, queue.cold_depth, queue.cold_bytes = queue.ready, queue.warm_scheduled, 0, 0
  queue.bytes = queue.bytes or whole(queue.warm_bytes)
  if cold then
    queue.depth, queue.scheduled = whole(queue.ready + cold.depth), whole(queue.warm_scheduled + cold.scheduled)
    queue.bytes, queue.cold_depth = whole(queue.warm_bytes + cold.bytes), whole(cold.depth)
    queue.cold_bytes = whole(cold.bytes)
  end
  queue.oldest_ms = oldest and whole(oldest)
  queue.waits, queue.runs = table.concat(tally.waits, ','), table.concat(tally.runs, ',')
  queue.odometers = tally.op == 'resync' and odometers_of(queue) or nil
  redis.pcall('XADD', METRICS, 'MAXLEN', '~', maxlen, '*', 'e', pack_event(queue))
end

-- Emit the events of the queues that the script has loaded, and write the shard's own numbers. One event per queue and
-- verb; a queue whose numbers changed without a verb (a limit, a pause), or whose events were lost, gets a `resync`,
-- which counts nothing and tells all its numbers.
local function emit_events(maxlen)
  local events = {}
  for _, queue in ipairs(touched_queues) do
    if queue.resync then queue.ops[#queue.ops + 1] = { op = 'resync', n = 0, waits = {}, runs = {} } end
    for _, tally in ipairs(queue.ops) do events[#events + 1] = { queue, tally } end
  end
  -- Before the events: no two scripts may give their events the same numbers. A number without an event is a gap, and
  -- known as one.
  if #events > 0 then
    local numbers = shard_numbers()
    numbers.seq, numbers.changed = numbers.seq + #events, true
  end
  if shard and shard.changed then
    local fields = { 'seq', shard.seq, 'bytes', shard.bytes, 'delivery', shard.delivery, 'turn', shard.turn }
    for Q, clock in pairs(class_clocks) do add_scored(fields, 'turn:' .. Q, clock) end
    redis.call('HSET', META, unpack(fields))
  end
  if #events == 0 then return end
  local enabled = redis.call('GET', METRICS_ENABLED) ~= '0'
  maxlen = stored_bound(4) or maxlen
  for i, event in ipairs(events) do emit(event[1], event[2], shard.seq - #events + i, maxlen, enabled) end
end

-- Write back what the script changed, and emit its events.
local function save_all(maxlen)
  for _, queue in ipairs(touched_queues) do save_ready(queue) end
  for key, members in pairs(left) do in_chunks('ZREM', key, members) end
  for _, queue in ipairs(touched_queues) do
    reindex_queue(queue)
    local env = queue.environment
    if env.bytes then env.bytes = math.max(0, env.bytes + queue.warm_bytes - queue.bytes_before) end
    if env.jobs then env.jobs = math.max(0, env.jobs + held_by(queue) - queue.held_before) end
  end
  for _, env in ipairs(touched_envs) do
    reindex_env(env)
    if env.bytes and env.jobs then
      redis.call('HSET', env_key(env.E), 'depth', env.depth, 'running', env.running, 'bytes', env.bytes, 'jobs', env.jobs)
    elseif env.bytes then
      redis.call('HSET', env_key(env.E), 'depth', env.depth, 'running', env.running, 'bytes', env.bytes)
    else
      redis.call('HSET', env_key(env.E), 'depth', env.depth, 'running', env.running)
    end
  end
  -- After the indexes: should a script fail among them, `indexed` is as it was, and the next one writes them again.
  for _, queue in ipairs(touched_queues) do
    save_details(queue)
    queue.bytes = whole(queue.warm_bytes)
    redis.call('HSET', queue_key(queue.E, queue.Q), 'ready', queue.ready, 'warm_scheduled', queue.warm_scheduled,
      'running', queue.running, 'warm_bytes', queue.bytes, 'levels', queue.levels, 'oldest', queue.oldest_text,
      'indexed', queue.indexed or '', 'known_detail', queue.known_detail or '')
    save_dead(queue)
    if queue.cold_changed then redis.call('HSET', queue_key(queue.E, queue.Q), 'cold', pack_cold(queue.cold)) end
    call_for_refill(queue)
    if queue.warm_bytes ~= queue.bytes_before then
      local numbers = shard_numbers()
      numbers.bytes, numbers.changed = numbers.bytes + queue.warm_bytes - queue.bytes_before, true
    end
  end
  emit_events(maxlen)
end
