-- expire: waiting jobs whose TTL is over are given up. (A running job keeps its chance; its TTL counts again
-- when it comes back.)
--@flags allow-oom
--@include keys, state, remove
-- KEYS[1]    the shard's meta (routes the script)
-- ARGV       prefix, maxlen, most jobs in this call
-- Returns    how many expired
local over = redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', whole(NOW), 'LIMIT', 0, ARGV[3])
for _, EJ in ipairs(over) do remove_waiting(EJ, 'expire') end
save_all(ARGV[2])
return #over
