-- stage: write a version that is not served yet. It ends by itself unless `switch` makes it the current one.
-- Also when memory is full: that is when somebody needs the numbers, and the versions before this one bound its size.
--@flags allow-oom
-- KEYS       data, meta
-- ARGV       ms to live, payload, then fields and values of meta
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[2], ARGV[1])
