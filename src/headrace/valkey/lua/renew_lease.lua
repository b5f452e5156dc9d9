-- renew_lease: renew the lease.
--@flags allow-oom
-- KEYS       lease
-- ARGV       owner, lease ms
-- Returns    1, or 0 if the owner does not hold the lease any more
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
