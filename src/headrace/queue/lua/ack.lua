-- ack: jobs are done. A result from a lease that is no longer held is refused, not applied.
--@include keys, state, event
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, then for each job: E, J, lease, run ms
-- Returns    for each job 1 (done) or 0 (lease lost)
local function ack(E, J, lease, run_ms)
  local EJ = E .. ':' .. J
  local Q = leased_queue(EJ, lease)
  if not Q then return 0 end
  end_lease(E, Q, EJ)
  redis.call('HINCRBY', queue_key(E, Q), 'bytes', -redis.call('HSTRLEN', job_key(EJ), 'payload'))
  redis.call('DEL', job_key(EJ))
  count(E, Q, 'ack', nil, run_ms)
  return 1
end

local answers = {}
for i = 3, #ARGV, 4 do
  answers[#answers + 1] = ack(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
emit_all(ARGV[2])
return answers
