-- enqueue: accept jobs into one queue. The same id twice is one job.
--@include keys, state, event
-- KEYS[1]    the queue's hash (routes the script to its shard)
-- ARGV       prefix, maxlen, E, Q, org, project, env, queue,
--            then for each job: J, id, task, payload, delay ms, max attempts
-- Returns    for each job 1 (accepted) or 0 (a job of that id exists already)
local maxlen, E, Q = ARGV[2], ARGV[3], ARGV[4]
local queue = queue_key(E, Q)

if redis.call('HSETNX', queue, 'epoch', whole(NOW)) == 1 then
  redis.call('HSET', queue, 'org', ARGV[5], 'project', ARGV[6], 'env', ARGV[7], 'queue', ARGV[8])
  redis.call('SADD', QUEUES, E .. ':' .. Q)
end

local function accept(J, id, task, payload, delay, max_attempts)
  local job = job_key(E .. ':' .. J)
  if redis.call('HSETNX', job, 'id', id) == 0 then return 0 end
  redis.call('HSET', job, 'Q', Q, 'task', task, 'payload', payload, 'enqueued', whole(NOW),
    'attempts', 0, 'max_attempts', max_attempts)
  redis.call('HINCRBY', queue, 'bytes', #payload)
  if delay > 0 then
    make_scheduled(E, Q, J, NOW + delay)
  else
    make_ready(E, Q, J, NOW)
  end
  count(E, Q, 'enqueue')
  return 1
end

local answers = {}
for i = 9, #ARGV, 6 do
  answers[#answers + 1] =
    accept(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]), ARGV[i + 5])
end
emit_all(maxlen)
return answers
