-- reclaim: jobs whose lease ended without a result go back to the head of their queue. A job whose last
-- attempt ended so is buried: one that kills its worker must not do so for ever.
--@flags allow-oom
--@include keys, state, leases
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, most jobs in this call
-- Returns    how many leases had ended
local lapsed = redis.call('ZRANGEBYSCORE', LEASES, '-inf', whole(NOW), 'LIMIT', 0, ARGV[3])
for _, EJ in ipairs(lapsed) do
  local E, J = EJ:match('^(.*):([^:]*)$')
  local job = held_job(E, J, redis.call('HGET', job_key(EJ), 'delivery'))
  end_lease(job)
  if job.attempts >= job.max_attempts then
    redis.call('HSET', job_key(EJ), 'error', 'The lease of attempt ' .. job.attempts
      .. ' ended without a result: its worker died or lost its connection.')
    make_dead(job)
  else
    make_wait(job.queue, J, job.due, job.priority, job.expires, job.detail)
    count(job.queue, 'reclaim')
  end
end
forget_leases()
save_all(ARGV[2])
return #lapsed
