-- stage: write a version that is not served yet. It expires unless `switch` makes it current. Also when memory is full:
-- metrics are needed most then, and the version replaces an older one of about the same size.
--@flags allow-oom
-- KEYS       data, meta
-- ARGV       ms to live, payload, then fields and values of meta
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[2], ARGV[1])
