-- release: scheduled jobs that are due become ready.
--@flags allow-oom
--@include keys, state
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, most jobs in this call
-- Returns    how many became ready
local due = redis.call('ZRANGEBYSCORE', SCHEDULED, '-inf', whole(NOW), 'WITHSCORES', 'LIMIT', 0, ARGV[3])
for i = 1, #due, 2 do
  local EJ = due[i]
  local E, J = EJ:match('^(.*):([^:]*)$')
  local v = redis.call('HMGET', job_key(EJ), 'Q', 'priority', 'detail')
  local queue = queue_of(E, v[1])
  remove_scheduled(queue, J)
  add_ready(queue, J, tonumber(due[i + 1]), tonumber(v[2]), v[3])
  redis.call('HSET', job_key(EJ), 'state', 'ready')
  count(queue, 'release')
end
save_all(ARGV[2])
return #due / 2
