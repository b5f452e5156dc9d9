-- release: scheduled jobs that are due become ready.
--@include keys, state, event
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, most jobs in this call
-- Returns    how many became ready
local due = redis.call('ZRANGEBYSCORE', SCHEDULED, '-inf', whole(NOW), 'LIMIT', 0, ARGV[3], 'WITHSCORES')
for i = 1, #due, 2 do
  local EJ = due[i]
  local E, J = EJ:match('^(.*):([^:]*)$')
  local Q = redis.call('HGET', job_key(EJ), 'Q')
  redis.call('ZREM', SCHEDULED, EJ)
  redis.call('HINCRBY', queue_key(E, Q), 'scheduled', -1)
  make_ready(E, Q, J, tonumber(due[i + 1]))
  count(E, Q, 'release')
end
emit_all(ARGV[2])
return #due / 2
