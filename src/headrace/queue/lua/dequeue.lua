-- dequeue: lease up to n jobs of a shard. Fair between environments, oldest first within one.
--@include keys, state, event
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, n, lease ms
-- Returns    for each job {org, project, env, queue, id, task, payload, attempt, max attempts,
--            lease, enqueued ms, waited ms}
local maxlen, n, lease_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local function take(E, Q)
  local head = redis.call('ZPOPMIN', ready_key(E, Q))
  local J, at = head[1], tonumber(head[2])
  local EJ = E .. ':' .. J
  local job = job_key(EJ)
  local lease = redis.call('HINCRBY', META, 'delivery', 1)
  local attempt = redis.call('HINCRBY', job, 'attempts', 1)
  redis.call('HSET', job, 'state', 'running', 'delivery', whole(lease))
  redis.call('ZADD', LEASES, whole(NOW + lease_ms), EJ)
  redis.call('HINCRBY', queue_key(E, Q), 'running', 1)
  redis.call('HINCRBY', env_key(E), 'running', 1)
  redis.call('HINCRBY', env_key(E), 'depth', -1)
  redis.call('ZINCRBY', ENVS, 1, E)
  reindex(E, Q)
  local waited = math.max(NOW - at, 0)
  count(E, Q, 'dequeue', waited)
  local names = redis.call('HMGET', queue_key(E, Q), 'org', 'project', 'env', 'queue')
  local kept = redis.call('HMGET', job, 'id', 'task', 'payload', 'max_attempts', 'enqueued')
  return { names[1], names[2], names[3], names[4], kept[1], kept[2], kept[3], attempt,
    tonumber(kept[4]), lease, tonumber(kept[5]), waited }
end

local jobs = {}
while #jobs < n do
  local E = redis.call('ZRANGE', ENVS, 0, 0)[1]
  if not E then break end
  local Q = redis.call('ZRANGE', env_queues_key(E), 0, 0)[1]
  jobs[#jobs + 1] = take(E, Q)
end
emit_all(maxlen)
return jobs
