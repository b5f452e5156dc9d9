-- reclaim: jobs whose lease ended without a result go back to the head of their queue.
--@include keys, state, event
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, most jobs in this call
-- Returns    how many came back
local lapsed = redis.call('ZRANGEBYSCORE', LEASES, '-inf', whole(NOW), 'LIMIT', 0, ARGV[3])
for _, EJ in ipairs(lapsed) do
  local E, J = EJ:match('^(.*):([^:]*)$')
  local kept = redis.call('HMGET', job_key(EJ), 'Q', 'due')
  end_lease(E, kept[1], EJ)
  make_ready(E, kept[1], J, tonumber(kept[2]))
  count(E, kept[1], 'reclaim')
end
emit_all(ARGV[2])
return #lapsed
