-- acquire_lease: acquire the lease if it is free, or renew it.
--@flags allow-oom
-- KEYS       lease
-- ARGV       owner, lease ms
-- Returns    the holder: the owner, or another one
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
