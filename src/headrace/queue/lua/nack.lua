-- nack: jobs failed. They are tried again after a delay, or buried if that was their last attempt.
--@include keys, state, event
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, then for each job: E, J, lease, delay ms, error
-- Returns    for each job 1 (will be tried again), 2 (buried) or 0 (lease lost)
local function bury(E, Q, J)
  local job = job_key(E .. ':' .. J)
  redis.call('ZADD', dead_key(E, Q), whole(NOW), J)
  redis.call('HSET', job, 'state', 'dead')
  redis.call('HINCRBY', queue_key(E, Q), 'bytes', -redis.call('HSTRLEN', job, 'payload'))
  count(E, Q, 'bury')
  return 2
end

local function retry(E, Q, J, delay)
  if delay > 0 then
    make_scheduled(E, Q, J, NOW + delay)
  else
    make_ready(E, Q, J, NOW)
  end
  count(E, Q, 'nack')
  return 1
end

local function nack(E, J, lease, delay, failure)
  local EJ = E .. ':' .. J
  local Q = leased_queue(EJ, lease)
  if not Q then return 0 end
  end_lease(E, Q, EJ)
  redis.call('HSET', job_key(EJ), 'error', failure)
  local tries = redis.call('HMGET', job_key(EJ), 'attempts', 'max_attempts')
  if tonumber(tries[1]) >= tonumber(tries[2]) then return bury(E, Q, J) end
  return retry(E, Q, J, delay)
end

local answers = {}
for i = 3, #ARGV, 5 do
  answers[#answers + 1] = nack(ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4])
end
emit_all(ARGV[2])
return answers
