-- dequeue: lease up to n jobs of a shard. Fair between environments, oldest first within one.
--@flags allow-oom
--@include keys, state
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, n, lease ms, nonce, whether settings must have been restored on this server
--            ('': no; 0: look now and then; 1: look now), then the queue names to serve (Q); none: all of them
-- Returns    {queues as {org, project, env, queue}, jobs as {number of its queue, body, attempt, max attempts,
--            lease token, enqueued ms, waited ms}}
-- A lease token is the delivery number and the caller's nonce. The number alone is not unique: after a failover to a
-- replica that was behind, numbers repeat.
local n, lease_ms, nonce = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local FIRST_NAME = 7

-- A server that restarted or took over may lack the last settings; a paused queue must not run there. The server's own
-- life is read some times a second only: a failover takes longer, and a client that lost its connection looks at once.
local SETTINGS_EVERY_MS = 250
if ARGV[6] ~= '' then
  local v = redis.call('HMGET', META, 'settings_for', 'settings_seen')
  if not v[1] or ARGV[6] == '1' or math.abs(NOW - tonumber(v[2] or 0)) >= SETTINGS_EVERY_MS then
    if (redis.call('INFO', 'replication'):match('master_replid:(%x+)') or 'unknown') ~= v[1] then
      return redis.error_reply('SETTINGS what operators decided was not restored on this server yet')
    end
    redis.call('HSET', META, 'settings_seen', whole(NOW))
  end
end
local jobs, leases, named = {}, {}, {}
local numbers = shard_numbers()

-- A waiting job whose TTL is over is expired here, should the sweeper not have come by yet.
local function expire(queue, EJ, size)
  redis.call('ZREM', EXPIRIES, EJ)
  redis.call('DEL', job_key(EJ), body_key(EJ))
  queue.warm_bytes = queue.warm_bytes - size
  count(queue, 'expire')
end

local function lease(queue, J, at)
  local EJ = queue.E .. ':' .. J
  local v = redis.call('HMGET', job_key(EJ), 'attempts', 'max_attempts', 'enqueued', 'expires', 'size', 'detail')
  leave_detail(queue, J, v[6])
  if v[4] then
    if tonumber(v[4]) <= NOW then return expire(queue, EJ, tonumber(v[5])) end
    redis.call('ZREM', EXPIRIES, EJ)
  end
  numbers.delivery, numbers.changed = numbers.delivery + 1, true
  local attempt, token = tonumber(v[1]) + 1, whole(numbers.delivery) .. '-' .. nonce
  if attempt < tonumber(v[2]) then
    redis.call('HSET', job_key(EJ), 'state', 'running', 'delivery', token, 'attempts', attempt)
  else -- the last attempt counts once its worker has begun it (begin.lua)
    redis.call('HSET', job_key(EJ), 'state', 'running', 'delivery', token, 'attempts', attempt, 'unbegun', token)
  end
  leases[#leases + 1] = whole(NOW + lease_ms)
  leases[#leases + 1] = EJ
  queue.running = queue.running + 1
  queue.environment.running = queue.environment.running + 1
  local waited = math.max(math.floor(NOW - at), 0)
  count(queue, 'dequeue', waited)
  if not queue.number then
    named[#named + 1] = { queue.org, queue.project, queue.env, queue.queue }
    queue.number = #named
  end
  jobs[#jobs + 1] = { queue.number, redis.call('GET', body_key(EJ)), attempt, tonumber(v[2]), token,
    tonumber(v[3]), waited }
end

local by_name = #ARGV >= FIRST_NAME

-- Count the turns that a queue's environment has taken, in both indexes. Only the clock of the index that it was the
-- first of moves. Before the queue leaves an index: the last job of an environment counts too.
local function count_turns(queue, taken)
  local all = redis.call('ZADD', ENVS, 'XX', 'INCR', taken, queue.E)
  local named = redis.call('ZADD', class_key(queue.Q), 'XX', 'INCR', taken, queue.E)
  if by_name then
    if named then class_clocks[queue.Q] = tonumber(named) - taken end
  elseif all then
    numbers.turn, numbers.changed = tonumber(all) - taken, true
  end
end

-- Take up to `most` jobs of a queue, none that is younger than `bound`: the next queue's oldest job.
local function take(queue, most, bound)
  queue.environment.clean = nil
  most = math.min(most, room_of(queue))
  local priority = levels_of(queue)[1]
  if queue.levels > 0 then most, bound = math.min(most, 1), '+inf' end
  local ready = ready_key(queue.E, queue.Q, priority)
  local found = redis.call('ZRANGEBYSCORE', ready, '-inf', bound, 'WITHSCORES', 'LIMIT', 0, most)
  local taken = #found / 2
  if taken > 0 then
    redis.call('ZREMRANGEBYRANK', ready, 0, taken - 1)
    drop_empty_level(queue, priority)
    queue.ready = queue.ready - taken
    queue.environment.depth = queue.environment.depth - taken
    queue.oldest_left = true
  end
  for i = 1, #found, 2 do lease(queue, found[i], tonumber(found[i + 1])) end
  count_turns(queue, taken)
  reindex_queue(queue)
end

-- The next queue to serve, and the age up to which it is next.
local function next_of_all()
  local E = redis.call('ZRANGE', ENVS, 0, 0)[1]
  if not E then return nil end
  local first = redis.call('ZRANGE', env_queues_key(E), 0, 1, 'WITHSCORES')
  return queue_of(E, first[1]), first[4] or '+inf'
end

-- How many environments have something to run in the queues this worker serves.
local function count_sharers()
  if not by_name then return redis.call('ZCARD', ENVS) end
  local sharers = 0
  for i = FIRST_NAME, #ARGV do sharers = sharers + redis.call('ZCARD', class_key(ARGV[i])) end
  return sharers
end

-- Turns under different queue names cannot be compared (each name counts since it last had jobs), so a name is
-- drawn, weighted by its environments: none starves another. Within a name the least served environment is next.
local function next_of_classes()
  local drawn = math.random(math.max(1, count_sharers()))
  for i = FIRST_NAME, #ARGV do
    drawn = drawn - redis.call('ZCARD', class_key(ARGV[i]))
    if drawn <= 0 then
      local E = redis.call('ZRANGE', class_key(ARGV[i]), 0, 0)[1]
      return queue_of(E, ARGV[i]), '+inf'
    end
  end
  return nil
end

local next_queue = by_name and next_of_classes or next_of_all
math.randomseed(numbers.delivery) -- the server starts every script with the same seed; this one moves with every job
-- Each environment gets its share of this call at once; the turns it took are counted all the same.
local sharers = count_sharers()
local share = math.max(1, math.floor(n / math.max(1, sharers)))

-- Bounded, whatever state it finds: every turn takes jobs, parks a queue or mends an index.
for _ = 1, 4 * n + 100 do
  if #jobs == n then break end
  local queue, bound = next_queue()
  if not queue then break end
  if env_blocked(queue.environment) then
    reindex_queue(queue) -- parks its name
    reindex_env(queue.environment)
  else
    take(queue, math.min(share, n - #jobs), bound)
    reindex_env(queue.environment)
  end
end
if #leases > 0 then
  for i = 1, #leases, 1000 do
    redis.call('ZADD', LEASES, unpack(leases, i, math.min(i + 999, #leases)))
  end
end
save_all(ARGV[2])
return { named, jobs }
