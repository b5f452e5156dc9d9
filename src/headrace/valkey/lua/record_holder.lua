-- record_holder: record the holder of a lease in a key that does not expire.
--@flags allow-oom
-- KEYS       last holder
-- ARGV       owner
-- Returns    1
redis.call('SET', KEYS[1], ARGV[1])
return 1
