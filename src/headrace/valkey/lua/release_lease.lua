-- release_lease: release the lease, so that another process can acquire it at once.
--@flags allow-oom
-- KEYS       lease
-- ARGV       owner
-- Returns    1, or 0 if the owner does not hold the lease
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
