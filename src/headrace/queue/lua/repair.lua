-- repair: repair one queue that a failed script left partly changed: every job is moved to the place that its state
-- names, the counters of the queue, its environment and the shard are computed again, and its indexes rebuilt. Reads
-- all jobs of the queue in one call: this is rare.
--@flags allow-oom
--@include recovery, dead_bytes, env_usage, records, save
-- KEYS[1]    meta of the shard (routes the script)
-- ARGV       prefix, maxlen
-- Returns    {part of the key of the queue ('': none needs repair), queues that still need repair}
local picked = redis.call('HRANDFIELD', REPAIR, 1, 'WITHVALUES')
local name, listed = picked[1], picked[2]
if not name then return { '', 0 } end
local E, Q = name:match('^(.*):([^:]*)$')
local queue = load_queue(E, Q)

-- Recover a job that the failed script was adding, which may have no place, or leasing, which no worker received.
local function recover_listed_job(J, token)
  local EJ = E .. ':' .. J
  local v = redis.call('HMGET', job_key(EJ), 'state', 'delivery', 'Q')
  local body = redis.call('GET', body_key(EJ))
  if not v[1] then
    if body and body ~= '' and body ~= DEAD_IN_POSTGRES then redis.call('DEL', body_key(EJ)) end
  elseif v[3] ~= Q then
    return
  elseif v[1] == 'running' and v[2] == token then
    redis.call('HINCRBY', job_key(EJ), 'attempts', -1)
    redis.call('HSET', job_key(EJ), 'state', 'ready')
    redis.call('HDEL', job_key(EJ), 'unbegun')
    place_by_state(E, J, 'ready')
  elseif v[1] ~= 'running' then
    place_by_state(E, J, v[1])
    if v[1] ~= 'dead' then redis.call('ZREM', dead_key(E, Q), J) end
  end
end

for entry in listed:gmatch('[^:]+') do
  local J, token = entry:match('^([^\t]*)\t?(.*)$')
  recover_listed_job(J, token)
end

if not queue.epoch then -- the script failed before it created the queue: there is nothing to count
  redis.call('HDEL', REPAIR, name)
  return { name, redis.call('HLEN', REPAIR) }
end

-- Remove the members of a sorted set for which `keep(member, score)` is false. Reads it in pages.
local function filter_sorted_set(key, keep)
  local from, dropped = 0, {}
  while true do
    local page = redis.call('ZRANGE', key, from, from + 999, 'WITHSCORES')
    if #page == 0 then break end
    for i = 1, #page, 2 do
      if not keep(page[i], page[i + 1]) then dropped[#dropped + 1] = page[i] end
    end
    from = from + #page / 2
  end
  call_in_chunks('ZREM', key, dropped)
end

local found = { ready = 0, scheduled = 0, running = 0, bytes = 0 }

-- Count the jobs of this queue in an index of the shard.
local function count_in_index(key, state)
  local start = E .. ':'
  filter_sorted_set(key, function(EJ)
    local J = EJ:sub(#start + 1)
    if EJ:sub(1, #start) ~= start or J:find(':', 1, true) then return true end
    local v = redis.call('HMGET', job_key(EJ), 'state', 'Q', 'size')
    if not v[1] then return false end
    if v[2] ~= Q then return true end
    if v[1] ~= state then
      place_by_state(E, J, v[1])
      return false
    end
    found[state], found.bytes = found[state] + 1, found.bytes + tonumber(v[3])
    return true
  end)
end

count_in_index(SCHEDULED, 'scheduled')
count_in_index(LEASES, 'running')

local details = {}
local priorities = redis.call('ZRANGE', levels_key(E, Q), 0, -1)
priorities[#priorities + 1] = '0'
for _, text in ipairs(priorities) do
  local priority = tonumber(text)
  local key = ready_key(E, Q, priority)
  filter_sorted_set(key, function(J, at)
    local v = redis.call('HMGET', job_key(E .. ':' .. J), 'state', 'Q', 'size', 'detail', 'priority')
    if v[1] ~= 'ready' or v[2] ~= Q or tonumber(v[5]) ~= priority then return false end
    found.ready, found.bytes = found.ready + 1, found.bytes + tonumber(v[3])
    details[v[4] or ''] = details[v[4] or ''] or {}
    append_scored(details[v[4] or ''], at, J)
    return true
  end)
  if priority ~= 0 and redis.call('EXISTS', key) == 0 then redis.call('ZREM', levels_key(E, Q), text) end
end

for _, detail in ipairs(redis.call('SMEMBERS', details_key(E, Q))) do redis.call('DEL', detail_key(E, Q, detail)) end
redis.call('DEL', details_key(E, Q))
for detail, members in pairs(details) do
  redis.call('SADD', details_key(E, Q), detail)
  redis.call('DEL', detail_key(E, Q, detail))
  call_in_chunks('ZADD', detail_key(E, Q, detail), members)
end

queue.ready, queue.warm_scheduled, queue.running = found.ready, found.scheduled, found.running
queue.warm_bytes, queue.levels, queue.known_detail = found.bytes, redis.call('ZCARD', levels_key(E, Q)), nil
queue.oldest_stale, queue.indexed, queue.resync = true, nil, queue.epoch and true or nil

filter_sorted_set(dead_key(E, Q), function(J) return redis.call('HGET', job_key(E .. ':' .. J), 'state') == 'dead' end)
sum_dead_bytes(queue)

local result_bytes, read_last_record = 0, open_records().read_last
filter_sorted_set(ATTEMPT_EXPIRIES, function(EJ)
  local last = EJ:match('^(.*):[^:]*$') == E and read_last_record(EJ)
  if last and last.Q == Q then result_bytes = result_bytes + last.bytes end
  return true
end)
if result_bytes ~= queue.result_bytes then redis.call('HSET', queue_key(E, Q), 'result_bytes', result_bytes) end

-- Counters of the environment and of the shard are sums over their queues.
local env = queue.environment
env.counted_at = nil
refresh_env_usage(env) -- the usage before this repair; `save_all` adds the changes
env.depth, env.running = queue.ready + (queue.cold and queue.cold.depth or 0), queue.running
env.queues_changed, env.was_blocked = true, true
for _, other in ipairs(redis.call('SMEMBERS', env_names_key(E))) do
  if other ~= Q then
    local v = redis.call('HMGET', queue_key(E, other), 'ready', 'running', 'cold')
    env.depth = env.depth + tonumber(v[1] or 0) + (v[3] and unpack_cold(v[3]).depth or 0)
    env.running = env.running + tonumber(v[2] or 0)
  end
end
local shard_state = load_shard()
shard_state.bytes, shard_state.changed = queue.bytes_before, true
for _, other in ipairs(redis.call('SMEMBERS', QUEUES)) do
  if other ~= name then
    local v = redis.call('HMGET', PREFIX .. 'q:' .. other, 'warm_bytes', 'result_bytes')
    shard_state.bytes = shard_state.bytes + tonumber(v[1] or 0)
    result_bytes = result_bytes + tonumber(v[2] or 0)
  end
end
if result_bytes ~= shard_state.result_bytes then redis.call('HSET', META, 'result_bytes', result_bytes) end
if queue.cold and queue.cold.on == 1 then
  redis.call('SADD', COLD, name)
else
  redis.call('SREM', COLD, name)
end
save_all(ARGV[2])
redis.call('HDEL', REPAIR, name)
return { name, redis.call('HLEN', REPAIR) }
