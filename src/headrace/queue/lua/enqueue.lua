-- enqueue: accept jobs into one queue. The same id twice is one job.
--@include keys, state
-- KEYS[1]    the queue's hash (routes the script to its shard)
-- ARGV       prefix, maxlen, E, Q, org, project, env, queue, then for each job: J, body, payload bytes,
--            delay ms, priority, ttl ms (0: none), max attempts
-- Returns    for each job 1 (accepted) or 0 (a job of that id exists already); CLOSED if the queue
--            takes no jobs
local E, Q = ARGV[3], ARGV[4]
local queue = queue_of(E, Q)
if queue.closed then return redis.error_reply('CLOSED this queue accepts no jobs') end

local function create()
  queue.epoch, queue.org, queue.project = whole(NOW), ARGV[5], ARGV[6]
  queue.env, queue.queue = ARGV[7], ARGV[8]
  redis.call('HSET', queue_key(E, Q), 'epoch', queue.epoch, 'org', queue.org, 'project', queue.project,
    'env', queue.env, 'queue', queue.queue)
  redis.call('SADD', QUEUES, E .. ':' .. Q)
  redis.call('SADD', env_names_key(E), Q)
end

local accepted = 0

local function accept(J, body, size, delay, priority, ttl, max_attempts)
  local EJ = E .. ':' .. J
  if not redis.call('SET', body_key(EJ), body, 'NX') then return 0 end
  -- Jobs of one call keep their order too: a 4096th of a millisecond each, less than accepting one takes.
  local at = NOW + delay + accepted / 4096
  redis.call('HSET', job_key(EJ), 'Q', Q, 'size', size, 'state', delay > 0 and 'scheduled' or 'ready',
    'enqueued', whole(NOW), 'due', precise(at), 'priority', priority, 'attempts', 0, 'max_attempts', max_attempts)
  if ttl > 0 then
    redis.call('HSET', job_key(EJ), 'expires', whole(NOW + ttl))
    redis.call('ZADD', EXPIRIES, whole(NOW + ttl), EJ)
  end
  if delay > 0 then add_scheduled(queue, J, at) else add_ready(queue, J, at, priority) end
  queue.bytes = queue.bytes + size
  count(queue, 'enqueue')
  accepted = accepted + 1
  return 1
end

if not queue.epoch then create() end
local answers = {}
for i = 9, #ARGV, 7 do
  answers[#answers + 1] = accept(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]),
    tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), ARGV[i + 6])
end
save_all(ARGV[2])
return answers
