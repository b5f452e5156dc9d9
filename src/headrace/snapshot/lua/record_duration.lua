-- record_duration: record how long a refresh took that did not fail.
--@flags allow-oom
-- KEYS       attempts
-- ARGV       duration ms
redis.call('HSET', KEYS[1], 'duration_ms', ARGV[1])
