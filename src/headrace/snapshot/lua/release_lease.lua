-- release_lease: let another go on at once.
--@flags allow-oom
-- KEYS       lease
-- ARGV       owner
-- Returns    1 if it was its own
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
